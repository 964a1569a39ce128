"""Workers are started with their signals held back, and survivors of a failure are ended."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from mfsdp_trainer.launcher import workers as module
from mfsdp_trainer.launcher.gang import Gang
from mfsdp_trainer.launcher.workers import Workers

HELD_BACK = """
import signal, sys
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
sys.exit(0 if {signal.SIGUSR1, signal.SIGUSR2} <= blocked else 3)
"""
FAIL_SECOND = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
sys.exit(5) if os.environ["RANK"] == "1" else time.sleep(600)
"""
DONE_FIRST = """
import os, sys, time
time.sleep(0 if os.environ["RANK"] == "0" else 0.5)
"""


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LAST_WORDS", 0.05)
    monkeypatch.setattr(module, "_TERMINATE", 0.1)


@pytest.fixture
def started() -> Iterator[list[Workers]]:
    every: list[Workers] = []
    yield every
    for workers in every:
        workers.kill()
        workers.wait(10)


def run(started: list[Workers], *command: str, procs: int = 2) -> Workers:
    gang = Gang(nodes=1, node_rank=0, procs=procs, master_addr="127.0.0.1", master_port=1)
    workers = Workers(gang, ["-c", *command])
    started.append(workers)
    workers.start(os.environ)
    deadline = time.monotonic() + 60
    while not workers.poll():
        assert time.monotonic() < deadline, "waited 60 s for the workers to end"
        time.sleep(0.01)
    return workers


def test_signals_wait_for_their_handlers(started: list[Workers]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run(started, HELD_BACK).exit_codes == {}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(("mood", "end"), [("willing", signal.SIGTERM), ("deaf", signal.SIGKILL)])
def test_survivors_are_ended(started: list[Workers], mood: str, end: signal.Signals) -> None:
    workers = run(started, FAIL_SECOND, mood)
    assert list(workers.exit_codes.items()) == [(1, 5), (0, -end)]


def test_success_ends_nobody_else(started: list[Workers]) -> None:
    workers = run(started, DONE_FIRST, procs=3)
    assert workers.exit_codes == {}
    assert workers.pids == set()
