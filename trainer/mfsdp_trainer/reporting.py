"""What a worker tells the process above it: phase, progress, heartbeats, and how it ended.

`mfsdp-train` (PID 1) gives its workers a directory on their own node, `MFSDP_RUN_DIR`. Each rank
writes small files there and PID 1 reads them: it never has to wait for a worker, and what a worker
wrote outlives it. The other way go two signals: SIGUSR1 asks for a checkpoint and an end, SIGUSR2
for the stacks of all threads. SIGTERM keeps its meaning, die now.

Imports no torch. Files of rank R: `heartbeat-R`, `outcome-R.json`, `stacks-R`; of rank 0 alone:
`progress.json`; of whoever asks for a trace, and of the node's first rank: `trace-*.json`.
"""

import ctypes
import faulthandler
import json
import logging
import math
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

from pydantic import Field, ValidationError

from .config.base import ConfigModel
from .contract import Env, Outcome, Phase, Progress, Reason
from .errors import describe, is_peer_loss, one_line, reason_of
from .observe.timeline import Part, Timeline

RUN_DIR_ENV: Final = "MFSDP_RUN_DIR"
LAUNCHER_PID_ENV: Final = "MFSDP_LAUNCHER_PID"
STOP_SIGNAL: Final = signal.SIGUSR1
STACKS_SIGNAL: Final = signal.SIGUSR2
PROGRESS_FILE: Final = "progress.json"
TRACE_REQUEST_FILE: Final = "trace-request.json"
TRACE_ANSWER_FILE: Final = "trace-answer.json"
_HEARTBEAT_BYTES: Final = 192
_PR_SET_PDEATHSIG: Final = 1

_log = logging.getLogger(__name__)


class Heartbeat(ConfigModel):
    """A rank's sign of life. `at` is CLOCK_MONOTONIC, one clock for all processes of a node."""

    rank: int
    pid: int
    phase: Phase
    step: int | None
    at: float
    memory: int | None = None
    """Bytes that the rank holds: of its GPU, or of the process without one."""


class WorkerOutcome(ConfigModel):
    """How a rank ended, and when: the first failure of a node is the one to tell."""

    outcome: Outcome
    at: float
    peer_lost: bool = Field(default=False)


class TraceRequest(ConfigModel):
    """Somebody in the pod wants a trace of so many steps."""

    steps: int = Field(ge=1, le=100)


class TraceAnswer(ConfigModel):
    """Where the trace is, or why there is none."""

    files: tuple[str, ...] = ()
    error: str = ""


def heartbeat_file(run_dir: Path, rank: int) -> Path:
    """Where a rank leaves its heartbeat."""
    return run_dir / f"heartbeat-{rank}"


def outcome_file(run_dir: Path, rank: int) -> Path:
    """Where a rank says how it ended."""
    return run_dir / f"outcome-{rank}.json"


def stacks_file(run_dir: Path, rank: int) -> Path:
    """Where a rank's faulthandler writes on STACKS_SIGNAL."""
    return run_dir / f"stacks-{rank}"


def publish(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _finite(value: float | str | None) -> float | str | None:
    """NaN and infinities become None: JSON has no word for them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _die_with(launcher: str | None) -> None:
    """Have the kernel end this process when `mfsdp-train` dies, however it dies."""
    if launcher is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(launcher):  # it died before we asked
        os._exit(1)


class Reporter:
    """One rank's line to PID 1. Without a run directory (a bare torchrun) it only logs."""

    def __init__(self, run_dir: Path | None, rank: int) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._phase = Phase.STARTING
        self._step: int | None = None
        self._memory: int | None = None
        launcher = os.environ.get(LAUNCHER_PID_ENV)
        self.timeline = Timeline.of_process(int(launcher) if launcher else None)
        """Where this rank's time goes."""
        self._stop = threading.Event()
        self._ended = False
        self._stacks: TextIO | None = None
        self._beats: int | None = None
        if run_dir is not None:
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
            self._beats = os.open(heartbeat_file(run_dir, rank), flags, 0o600)
        self._progress = Progress(
            job_uid=os.environ.get(Env.JOB_UID, ""),
            attempt=int(os.environ.get(Env.ATTEMPT) or 0),
        )

    @classmethod
    def from_env(cls) -> "Reporter":
        """The reporter of this process, from MFSDP_RUN_DIR and RANK, with its signals in place.

        Call it first thing in the main thread, before anything slow is imported: PID 1 starts
        workers with both signals blocked, and this is what opens them.
        """
        run_dir = os.environ.get(RUN_DIR_ENV)
        reporter = cls(Path(run_dir) if run_dir else None, int(os.environ.get("RANK") or 0))
        _die_with(os.environ.get(LAUNCHER_PID_ENV))
        reporter._listen()
        reporter._beat()
        return reporter

    def _listen(self) -> None:
        if self._run_dir is None:
            faulthandler.register(STACKS_SIGNAL, all_threads=True)
        else:
            # Kept open: faulthandler writes to the descriptor from inside the signal handler,
            # where a process stuck in C code cannot open one any more.
            self._stacks = stacks_file(self._run_dir, self._rank).open("w", encoding="utf-8")
            faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        signal.signal(STOP_SIGNAL, self._on_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL, STACKS_SIGNAL})

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop.set()

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return self._rank

    @property
    def stop_requested(self) -> bool:
        """Whether SIGUSR1 arrived: finish the step, checkpoint, raise PreemptedError.

        Signals reach one node only: agree on it over all ranks each step.
        """
        return self._stop.is_set()

    def trace_request(self) -> int:
        """Steps that somebody asked to have traced since the last look; the node's first rank
        alone is ever asked."""
        if self._run_dir is None or int(os.environ.get("LOCAL_RANK") or 0) != 0:
            return 0
        file = self._run_dir / TRACE_REQUEST_FILE
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return 0
        file.unlink(missing_ok=True)
        try:
            return TraceRequest.model_validate_json(text).steps
        except ValidationError:
            _log.warning("a request for a trace that is none is dropped: %s", file)
            return 0

    def answer_trace(self, answer: TraceAnswer) -> None:
        """Tell whoever asked."""
        if self._run_dir is not None:
            publish(self._run_dir / TRACE_ANSWER_FILE, answer.model_dump_json())

    def phase(self, phase: Phase) -> None:
        """Say what the run does now. The limit of the hang watch goes by it."""
        self._phase = phase
        self.timeline.phase(phase, first=self._step is None)
        self._beat()
        if self._rank == 0:
            self.progress(phase=phase)

    def part(self, part: Part) -> None:
        """Say which part of a phase begins. Counts as a sign of life."""
        self.timeline.enter(part)
        self._beat()

    def heartbeat(self, step: int, memory: int | None = None) -> None:
        """Say that this rank finished optimizer step `step`: every rank, every step (5 us).

        `memory` in bytes is kept until it is told anew.
        """
        self._step = step
        self._memory = memory if memory is not None else self._memory
        self.timeline.stepped()
        self._beat()

    def progress(self, **fields: float | str | None) -> None:
        """Merge fields of `Progress` (by their Python names) and publish them. Rank 0 only."""
        known = self._progress.model_dump()
        clean = {name: _finite(value) for name, value in fields.items()}
        now = {"updated_at": time.time(), "part_seconds": self.timeline.seconds()}
        self._progress = Progress.model_validate({**known, **clean, **now})
        if self._run_dir is not None and self._rank == 0:
            publish(
                self._run_dir / PROGRESS_FILE,
                self._progress.model_dump_json(by_alias=True),
            )

    def outcome(
        self,
        reason: Reason,
        message: str = "",
        step: int | None = None,
        *,
        peer_lost: bool = False,
    ) -> None:
        """Say how this rank ended, once: of several calls the first counts."""
        if self._ended:
            return
        self._ended = True
        outcome = Outcome(
            reason=reason,
            message=one_line(message),
            step=self._step if step is None else step,
            rank=self._rank,
        )
        _log.debug("rank %d ends: %s %s", self._rank, reason, outcome.message)
        if self._run_dir is not None:
            record = WorkerOutcome(outcome=outcome, at=time.monotonic(), peer_lost=peer_lost)
            publish(
                outcome_file(self._run_dir, self._rank),
                record.model_dump_json(by_alias=True),
            )

    def failed(self, error: BaseException) -> int:
        """Say that this rank ended with an exception; returns the exit code that goes with it."""
        reason = reason_of(error)
        self.outcome(reason, describe(error), peer_lost=is_peer_loss(error))
        return int(reason.exit_code)

    def _beat(self) -> None:
        if self._beats is None:
            return
        record = {
            "rank": self._rank,
            "pid": os.getpid(),
            "phase": self._phase,
            "step": self._step,
            "at": time.monotonic(),
            "memory": self._memory,
        }
        # One pwrite of a fixed length in place of a rename: ten times cheaper, and a reader that
        # does meet a torn record keeps the one before.
        os.pwrite(self._beats, json.dumps(record).ljust(_HEARTBEAT_BYTES).encode(), 0)
