"""The life of one run on this node, from the first signal handler to the one reason it ended."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.contract import Env, Outcome, Phase, Reason
from mfsdp_trainer.errors import TrainerError, describe
from mfsdp_trainer.reporting import LAUNCHER_PID_ENV, RUN_DIR_ENV, STOP_SIGNAL

from .agent import Agent
from .gang import Gang, Limits
from .hang import HangWatch, show_stacks
from .memory import MemoryWatch
from .outcome import Evidence, decide
from .reaper import reap_orphans
from .rundir import RunDir
from .server import serve
from .stop import Stop, StopRequests
from .view import View

_TICK: Final = 0.1
_AFTER_KILL: Final = 5.0
_FLIGHT_RECORDS: Final = "nccl-"
_BEFORE_STEPS: Final = frozenset({Phase.STARTING, Phase.RENDEZVOUS, Phase.LOADING})


class Supervisor:
    """Runs the workers of one node to their end. Main thread only; use once."""

    def __init__(self, gang: Gang, limits: Limits, run_dir: RunDir, worker: Sequence[str]) -> None:
        self._gang = gang
        self._run_dir = run_dir
        self._agent = Agent(gang, limits, worker, run_dir.path)
        self._requests = StopRequests(limits.stop)
        self._watch = HangWatch(gang.ranks, limits)
        self._memory = MemoryWatch()
        self._stop = Stop.NO
        self._stop_cause = ""
        self._hang: str | None = None
        self.view = View(gang, run_dir)

    def run(self, port: int) -> Outcome:
        """Serve on `port`, start the workers, and stay until they end. Raises ConfigError."""
        self._requests.listen()
        serve(port, self.view)
        self._agent.start()
        self.view.phase = Phase.RENDEZVOUS
        last = time.monotonic()
        while not self._agent.done.wait(_TICK):
            now = time.monotonic()
            if self._tick(now - last):
                if self._agent.workers:
                    self._agent.done.wait(_AFTER_KILL)
                break
            last = now
        self.view.phase = Phase.DONE
        return self._outcome()

    def _tick(self, seconds: float) -> bool:
        """One look at everything; returns whether the run is over whatever the agent does."""
        if self._requests.asked and self._handle_stop():
            return True
        if not self._agent.workers:
            return False
        reap_orphans([worker.pid for worker in self._agent.workers.values()])
        if self._agent.alive():
            self._hang = self._watch.observe(self._run_dir.heartbeats(self._gang.ranks), seconds)
            self.view.silent_seconds = self._watch.silent_seconds
        if self._hang:
            stacks = show_stacks(self._run_dir, self._gang.ranks, self._agent.send)
            print(stacks, file=sys.stderr, flush=True)  # noqa: T201 - many lines, as they are
            self._agent.kill()
        return self._hang is not None

    def _handle_stop(self) -> bool:
        """Move a stop on; returns whether the run is over."""
        if self._stop is Stop.NO:
            self._stop = Stop.ASKED
            if not self._any_step():
                # Workers that only load have nothing to save: the node is free sooner.
                self._stop = Stop.EARLY
                self._agent.kill()
                return True
            self._agent.send(STOP_SIGNAL)
        if not self._agent.alive():
            return True  # only the agent still waits for other nodes
        if cause := self._requests.patience:
            self._stop, self._stop_cause = Stop.KILLED, cause
            self._agent.kill()
            return True
        return False

    def _any_step(self) -> bool:
        beats = self._run_dir.heartbeats(self._gang.ranks).values()
        return any(beat.step is not None or beat.phase not in _BEFORE_STEPS for beat in beats)

    def _outcome(self) -> Outcome:
        error = self._agent.error
        if isinstance(error, TrainerError) and self._stop is Stop.NO:
            return Outcome(reason=error.reason, message=describe(error))
        if error is not None and not self._agent.workers and self._stop is Stop.NO:
            traceback.print_exception(error)
            return Outcome(reason=Reason.CRASH, message=describe(error))
        ranks = self._gang.ranks
        beats = self._run_dir.heartbeats(ranks).values()
        return decide(
            Evidence(
                ranks=tuple(ranks),
                outcomes=tuple(self._run_dir.outcomes(ranks)),
                exit_codes=tuple(self._agent.exit_codes.items()),
                step=max((b.step for b in beats if b.step is not None), default=None),
                stop=self._stop,
                stop_cause=self._stop_cause,
                hang=self._hang,
                memory_killed=self._memory.killed(),
                memory_limit=self._memory.limit(),
                collective_stuck=self._collective_stuck(),
            )
        )

    def _collective_stuck(self) -> frozenset[int]:
        """Ranks whose NCCL flight recorder was dumped."""
        found = (
            r for r in self._gang.ranks if (self._run_dir.path / f"{_FLIGHT_RECORDS}{r}").exists()
        )
        return frozenset(found)

    def clean_up(self) -> None:
        """End what workers left running."""
        self._agent.kill()


@contextlib.contextmanager
def _worker_environment(config: TrainerConfig, gang: Gang, run_dir: Path) -> Iterator[None]:
    """What workers inherit, beside what the agent sets for each rank."""
    file = run_dir / "config.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    before = os.environ.copy()
    cores = max(1, len(os.sched_getaffinity(0)) // gang.procs)
    os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(run_dir / _FLIGHT_RECORDS)
    os.environ[Env.CONFIG] = str(file)
    os.environ[RUN_DIR_ENV] = str(run_dir)
    os.environ[LAUNCHER_PID_ENV] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def launch(config: TrainerConfig, gang: Gang, limits: Limits, worker: Sequence[str]) -> Outcome:
    """Run this node's part of the gang; returns why it ended. Raises ConfigError.

    `worker` are the arguments to the Python interpreter that start one worker.
    """
    run_dir = RunDir.create()
    supervisor = Supervisor(gang, limits, run_dir, worker)
    try:
        with _worker_environment(config, gang, run_dir.path):
            return supervisor.run(config.logging.port)
    finally:
        supervisor.clean_up()
        run_dir.remove()
