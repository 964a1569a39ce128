"""Fixtures of the trainer's tests: one gang of processes, one small text, one small model."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.gang import Gang

# Its assertions shall tell their numbers, as those of tests do.
pytest.register_assert_rewrite("tests.trainer.reference")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell starts background jobs with SIGINT ignored, and every child inherits that: tests
    that press Ctrl-C would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    """Fresh processes for each file: torch remembers meshes by their ranks, and hands a process
    that was in many groups the name of one that is gone. No worker of ours joins a second group.
    """
    gang = Gang()
    yield gang
    gang.stop()


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 20 kB of text with structure, as one document."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"line {n}: {n * n} is the square of {n}, not {n * n + n}.\n" for n in range(400)]
    file.write_text("".join(lines), encoding="utf-8")
    return file
