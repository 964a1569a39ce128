"""Notices that nothing moves any more, and shows where every rank stands.

Silence is counted in the watch's own ticks and not by the clock: a container that was frozen for an
hour must not wake up to be called hung.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mfsdp_trainer.contract import Phase
from mfsdp_trainer.reporting import STACKS_SIGNAL, Heartbeat

from .gang import Limits
from .rundir import RunDir

_LONGEST_TICK: Final = 5.0
_STACKS_WAIT: Final = 5.0
_AFTER_RENDEZVOUS: Final = 60.0
_NO_PYTHON: Final = "<no Python frame>"
_FIRST_STEP: Final = "first_step_seconds"
FIELDS: Final = {
    Phase.STARTING: "start_seconds",
    Phase.LOADING: "load_seconds",
    Phase.TRAINING: "step_seconds",
    Phase.EVALUATING: "evaluate_seconds",
    Phase.SAVING: "save_seconds",
    Phase.EXPORTING: "export_seconds",
    Phase.DONE: "save_seconds",
}
"""Which field of `hang` limits a phase."""


@dataclass
class _Silence:
    beat: float = -1.0
    seconds: float = 0.0


class HangWatch:
    """Counts how long each rank of this node has been silent."""

    def __init__(self, ranks: Iterable[int], limits: Limits) -> None:
        self._silent = {rank: _Silence() for rank in ranks}
        self._limits = limits

    @property
    def silent_seconds(self) -> dict[int, float]:
        """Seconds since each rank's last sign of life, as far as the watch was awake."""
        return {rank: silence.seconds for rank, silence in self._silent.items()}

    def observe(self, beats: Mapping[int, Heartbeat], seconds: float) -> str | None:
        """Take note of a tick of `seconds`; returns one line about a hang, if it is one."""
        for rank, silence in self._silent.items():
            beat = beats[rank].at if rank in beats else -1.0
            moved = beat != silence.beat
            silence.seconds = 0.0 if moved else silence.seconds + min(seconds, _LONGEST_TICK)
            silence.beat = beat
        rank = max(self._silent, key=lambda rank: self._silent[rank].seconds)
        limit = self._limit(beats.get(rank))
        if self._silent[rank].seconds <= limit:
            return None
        return _describe(rank, beats.get(rank), limit)

    def _limit(self, beat: Heartbeat | None) -> float:
        if beat is None:
            return self._limits.hang.start_seconds
        if beat.phase is Phase.RENDEZVOUS:
            # The worker's own deadline has the better message.
            return self._limits.rendezvous + _AFTER_RENDEZVOUS
        first = beat.phase is Phase.TRAINING and beat.step is None
        return float(getattr(self._limits.hang, _FIRST_STEP if first else FIELDS[beat.phase]))


def _describe(rank: int, beat: Heartbeat | None, limit: float) -> str:
    phase = beat.phase if beat else Phase.STARTING
    after = f" after step {beat.step}" if beat and beat.step is not None else ""
    return (
        f"rank {rank} gave no sign of life for {limit:g} s in phase {phase}{after}; "
        "the stacks of all ranks are in the log above"
    )


def show_stacks(
    run_dir: RunDir, ranks: Iterable[int], send: Callable[[signal.Signals], None]
) -> str:
    """The Python stacks of all threads of the ranks, gathered through faulthandler.

    Waits until every rank's file has been written and has stopped growing, at most 5 seconds: a
    process in uninterruptible sleep never answers.
    """
    ranks = list(ranks)
    send(STACKS_SIGNAL)
    deadline = time.monotonic() + _STACKS_WAIT
    before: list[str] = []
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = [run_dir.stacks(rank) for rank in ranks]
        if all(now) and now == before:
            break
        before = now
    return "\n".join(
        f"--- stacks of rank {rank} ---\n{_readable(run_dir.stacks(rank))}" for rank in ranks
    )


def _readable(stacks: str) -> str:
    """Without the threads of libraries, which have no Python to show."""
    threads = [thread for thread in stacks.split("\n\n") if _NO_PYTHON not in thread]
    return "\n\n".join(threads) or "(no answer: stuck in the kernel, or not started)"
