"""The life of one run on this node, from the first signal handler to the one reason it ended."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Final

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.contract import Env, ExitCode, Outcome, Phase
from mfsdp_trainer.reporting import LAUNCHER_PID_ENV, RUN_DIR_ENV, STOP_SIGNAL

from .gang import Gang, Limits
from .hang import HangWatch, show_stacks
from .memory import MemoryWatch
from .outcome import Evidence, decide
from .reaper import reap_orphans
from .rundir import RunDir
from .server import serve
from .stop import Stop, StopRequests
from .view import View
from .workers import Workers

_TICK: Final = 0.05
_AFTER_KILL: Final = 5.0
_FLIGHT_RECORDS: Final = "nccl-"
_BEFORE_STEPS: Final = frozenset({Phase.STARTING, Phase.RENDEZVOUS, Phase.LOADING})


class Supervisor:
    """Runs the workers of one node to their end. Main thread only; use once."""

    def __init__(
        self,
        gang: Gang,
        limits: Limits,
        run_dir: RunDir,
        worker: Sequence[str],
        requests: StopRequests,
    ) -> None:
        self._gang = gang
        self._limits = limits
        self._run_dir = run_dir
        self._workers = Workers(gang, worker)
        self._requests = requests
        self._watch = HangWatch(gang.ranks, limits)
        self._memory = MemoryWatch()
        self._stop = Stop.NO
        self._stop_cause = ""
        self._hang: str | None = None
        self._timed_out = False
        self.view = View(gang, run_dir)

    def run(self, config: TrainerConfig) -> Outcome:
        """Serve, start the workers, and stay until they end. Raises ConfigError: port in use."""
        serve(config.logging.port, self.view)
        self._workers.start(self._environment(config))
        try:
            self._watch_to_the_end()
        finally:
            self._workers.kill()
            self._workers.wait(_AFTER_KILL)
        return decide(self._evidence())

    def _watch_to_the_end(self) -> None:
        last = time.monotonic()
        while not self._workers.poll():
            if self._requests.asked and self._move_stop_on():
                return
            self._look_for_timeout()
            now = time.monotonic()
            if self._look_for_hang(now - last):
                return
            last = now
            reap_orphans(self._workers.pids)
            time.sleep(_TICK)

    def _look_for_hang(self, seconds: float) -> bool:
        beats = self._run_dir.heartbeats(self._gang.ranks)
        self._hang = self._watch.observe(beats, seconds)
        self.view.silent_seconds = self._watch.silent_seconds
        if self._hang is None:
            return False
        self._show_stacks()
        return True

    def _look_for_timeout(self) -> None:
        """Once: where do the ranks stand that another waited for in vain?"""
        if not self._timed_out and ExitCode.COLLECTIVE_TIMEOUT in self._workers.exit_codes.values():
            self._timed_out = True
            self._show_stacks()

    def _show_stacks(self) -> None:
        """The stacks of all ranks that still run, into the log."""
        if not (running := self._workers.running):
            return
        stacks = show_stacks(self._run_dir, running, self._workers.send)
        print(stacks, file=sys.stderr, flush=True)  # noqa: T201 - many lines, as they are

    def _move_stop_on(self) -> bool:
        """Ask the workers for a checkpoint, once; returns whether to kill them now."""
        if self._stop is Stop.NO:
            if not self._any_step():
                # Workers that only load have nothing to save: the node is free sooner.
                self._stop = Stop.EARLY
                return True
            self._stop = Stop.ASKED
            self._workers.send(STOP_SIGNAL)
        if cause := self._requests.impatience(self._limits.stop):
            self._stop, self._stop_cause = Stop.KILLED, cause
            if not self._requests.insisted:
                self._show_stacks()
        return self._stop is Stop.KILLED

    def _any_step(self) -> bool:
        beats = self._run_dir.heartbeats(self._gang.ranks).values()
        return any(beat.step is not None or beat.phase not in _BEFORE_STEPS for beat in beats)

    def _evidence(self) -> Evidence:
        ranks = self._gang.ranks
        beats = self._run_dir.heartbeats(ranks).values()
        progress = self._run_dir.progress()
        return Evidence(
            ranks=tuple(ranks),
            outcomes=tuple(self._run_dir.outcomes(ranks)),
            exit_codes=tuple(self._workers.exit_codes.items()),
            step=max((b.step for b in beats if b.step is not None), default=None),
            checkpoint_step=progress.checkpoint_step if progress else None,
            stop=self._stop,
            stop_cause=self._stop_cause,
            hang=self._hang,
            memory_killed=self._memory.killed(),
            memory_limit=self._memory.limit(),
            collective_stuck=frozenset(rank for rank in ranks if self._flight_record(rank)),
        )

    def _flight_record(self, rank: int) -> bool:
        """Whether NCCL's flight recorder of a rank was dumped."""
        return (self._run_dir.path / f"{_FLIGHT_RECORDS}{rank}").exists()

    def _environment(self, config: TrainerConfig) -> dict[str, str]:
        """What all workers get, over what we got ourselves."""
        file = self._run_dir.path / "config.yaml"
        file.write_text(dump_config(config), encoding="utf-8")
        return {
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
            **os.environ,
            "TORCH_FR_DUMP_TEMP_FILE": str(self._run_dir.path / _FLIGHT_RECORDS),
            Env.RENDEZVOUS_TIMEOUT: f"{self._limits.rendezvous:g}",
            Env.CONFIG: str(file),
            RUN_DIR_ENV: str(self._run_dir.path),
            LAUNCHER_PID_ENV: str(os.getpid()),
        }


def launch(
    config: TrainerConfig, gang: Gang, limits: Limits, worker: Sequence[str], stop: StopRequests
) -> Outcome:
    """Run this node's part of the gang; returns why it ended. Raises ConfigError.

    `worker` are the arguments to the Python interpreter that start one worker.
    """
    run_dir = RunDir.create()
    try:
        return Supervisor(gang, limits, run_dir, worker, stop).run(config)
    finally:
        run_dir.remove()
