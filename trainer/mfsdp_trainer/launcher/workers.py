"""The worker processes of this node: starts one for each local rank, and sees each of them end.

What torch's elastic agent would do for a static gang without restarts, minus its import of torch:
that took 3.5 s of every start and 500 MB of every pod (docs/decisions).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from mfsdp_trainer.contract import ExitCode
from mfsdp_trainer.reporting import STACKS_SIGNAL, STOP_SIGNAL

from .gang import Gang

_LAST_WORDS: Final = 1.0
"""Seconds that survivors of a failure have to say what they saw: the first to end is often only
the echo of another."""
_LAST_WORDS_PREEMPTED: Final = 10.0
"""The same once a rank ended as preempted: the others are about to."""
_TERMINATE: Final = 5.0
"""Seconds from SIGTERM to SIGKILL."""


def worker_environment(gang: Gang, local_rank: int) -> dict[str, str]:
    """torchrun's variables for one worker. The worker of rank 0 serves the store on MASTER_PORT."""
    return {
        "RANK": str(gang.ranks[local_rank]),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(gang.nodes * gang.procs),
        "LOCAL_WORLD_SIZE": str(gang.procs),
        "GROUP_RANK": str(gang.node_rank),
        "GROUP_WORLD_SIZE": str(gang.nodes),
        "MASTER_ADDR": gang.master_addr,
        "MASTER_PORT": str(gang.master_port),
        "TORCHELASTIC_RUN_ID": gang.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


class Workers:
    """All workers of one node. Main thread only: nobody else may wait for them."""

    def __init__(self, gang: Gang, command: Sequence[str]) -> None:
        self._gang = gang
        self._command = command
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failed_at: float | None = None
        self._patience = _LAST_WORDS
        self.exit_codes: dict[int, int] = {}
        """Exit code of each rank that failed, the first one first; negative: a signal."""

    def start(self, environment: Mapping[str, str]) -> None:
        """Start every local rank, in a process group of its own."""
        # A worker that has not installed its handlers yet must not die of a signal that asks for
        # a checkpoint: it inherits a mask that keeps both pending until Reporter.from_env.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL, STACKS_SIGNAL})
        try:
            for local_rank, rank in enumerate(self._gang.ranks):
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, *self._command],
                    env={**environment, **worker_environment(self._gang, local_rank)},
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pids(self) -> set[int]:
        """Processes whose exit code is still to be collected."""
        return {p.pid for p in self._processes.values() if p.returncode is None}

    @property
    def running(self) -> list[int]:
        """Ranks whose process has not ended, as far as it was looked at."""
        return [rank for rank, p in self._processes.items() if p.returncode is None]

    def poll(self) -> bool:
        """Collect those that ended, and end the survivors of a failure; whether all have ended."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code and rank not in self.exit_codes:
                self.exit_codes[rank] = code
                self._note_failure(code)
        self._end_survivors()
        return not self.pids

    def _note_failure(self, code: int) -> None:
        if self._failed_at is None:
            self._failed_at = time.monotonic()
        if code == ExitCode.PREEMPTED:
            self._patience = _LAST_WORDS_PREEMPTED

    def _end_survivors(self) -> None:
        if self._failed_at is None:
            return
        waited = time.monotonic() - self._failed_at
        if waited > self._patience + _TERMINATE:
            self.kill()
        elif waited > self._patience:
            self.send(signal.SIGTERM)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to every worker that runs, and to none of their children."""
        for process in self._processes.values():
            process.send_signal(signum)

    def kill(self) -> None:
        """End the workers and whatever they left in their process groups, now."""
        self.send(signal.SIGKILL)
        for process in self._processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def wait(self, seconds: float) -> None:
        """Wait for the end of all, at most so long: one in uninterruptible sleep never comes."""
        deadline = time.monotonic() + seconds
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
