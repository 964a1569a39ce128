"""Starts `mfsdp-train` as a process of its own and waits for what it does, never for a time."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DEADLINE = 90.0
CONFIG = """\
procsPerNode: 2
model: {config: {model_type: llama}}
data: {sources: [{builtin: python-stdlib}]}
training: {steps: 10, globalBatchSize: 4, learningRate: 1e-5}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until[T](what: str, look: Callable[[], T | None], deadline: float = DEADLINE) -> T:
    """The first true answer of `look`."""
    end = time.monotonic() + deadline
    pause = 0.01
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    raise AssertionError(f"waited {deadline:g} s for {what}")


@dataclass
class Launch:
    """One `mfsdp-train`: its process, what it printed, what it left for the kubelet."""

    process: subprocess.Popen[bytes]
    port: int
    errors: Path
    termination_log: Path
    children: set[int] = field(default_factory=set)

    def stderr(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def last_line(self) -> str:
        return self.stderr().splitlines()[-1]

    def outcome(self) -> dict[str, Any]:
        return dict(json.loads(self.termination_log.read_text(encoding="utf-8")))

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return bytes(answer.read())

    def progress(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self.get("/progress")))
        except OSError:
            return None

    def until_progress(self, what: str, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            if self.process.poll() is not None:
                raise AssertionError(f"ended while waiting for {what}:\n{self.stderr()}")
            progress = self.progress()
            return progress if progress and check(progress) else None

        return until(what, look)

    def until_training(self) -> None:
        self.until_progress("a training step", lambda progress: progress["step"] >= 1)

    def until_phase(self, phase: str) -> None:
        self.until_progress(f"phase {phase}", lambda progress: progress["phase"] == phase)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"mfsdp-train did not end in {DEADLINE:g} s; so far:\n{self.stderr()}"
            ) from None


type Launcher = Callable[..., Launch]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def launch(tmp_path: Path, config: Path) -> Iterator[Launcher]:
    """Start `mfsdp-train` with a scenario of worker.py; killed at the end if it still runs."""
    started: list[Launch] = []

    def start(
        scenario: str,
        *flags: str,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        **options: object,
    ) -> Launch:
        number = len(started)
        port = free_port()
        errors = tmp_path / f"stderr-{number}"
        log = tmp_path / f"termination-{number}"
        test = {"MFSDP_TERMINATION_LOG": str(log), "TMPDIR": str(tmp_path)}
        command = [
            *prefix,
            sys.executable,
            str(HERE / "main.py"),
            json.dumps({"scenario": scenario, **options}),
            f"--config={config}",
            f"--set=logging.port={port}",
            *flags,
        ]
        with errors.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                env={**os.environ, **test, **(env or {})},
            )
        started.append(Launch(process, port, errors, log))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
