"""Where the time of a run goes: one part after another, from the start of the container on.

Imports no torch. Of a rank of its own; rank 0's is what a person sees.
"""

import os
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from mfsdp_trainer.contract import Phase

_START_TIME: Final = 19
"""Index of starttime in /proc/PID/stat, counted after the name of the program."""


class Part(StrEnum):
    """What time is spent on, in the order of a run."""

    LAUNCH = "launch"
    """PID 1 itself: from the start of the container to the start of the worker."""
    IMPORTS = "imports"
    RENDEZVOUS = "rendezvous"
    DATA = "data"
    MODEL = "model"
    RESTORE = "restore"
    FIRST_STEP = "first_step"
    TRAINING = "training"
    """Steps after the first."""
    EVALUATING = "evaluating"
    SAVING = "saving"
    EXPORTING = "exporting"


_PARTS: Final = {
    Phase.STARTING: Part.IMPORTS,
    Phase.RENDEZVOUS: Part.RENDEZVOUS,
    Phase.LOADING: Part.DATA,
    Phase.TRAINING: Part.TRAINING,
    Phase.EVALUATING: Part.EVALUATING,
    Phase.SAVING: Part.SAVING,
    Phase.EXPORTING: Part.EXPORTING,
}
UNTIL_FIRST_STEP: Final = (
    *(Part.LAUNCH, Part.IMPORTS, Part.RENDEZVOUS, Part.DATA, Part.MODEL, Part.RESTORE),
    *(Part.EVALUATING, Part.FIRST_STEP),
)


class Timeline:
    """Adds up the seconds of each part; one part is under way at any time until the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._part: Part | None = Part.IMPORTS
        self._since = clock()
        self._seconds: dict[Part, float] = {}

    @classmethod
    def of_process(cls, launcher: int | None = None) -> "Timeline":
        """The timeline of this process since it began, and of the launcher before it."""
        timeline = cls()
        own = process_age(os.getpid())
        timeline._since -= own
        if launcher is not None:
            timeline._seconds[Part.LAUNCH] = max(process_age(launcher) - own, 0.0)
        return timeline

    def enter(self, part: Part | None) -> None:
        """Begin another part; None ends the counting."""
        now = self._clock()
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now

    def phase(self, phase: Phase, *, first: bool) -> None:
        """Begin what a phase is about; `first` while no step is finished."""
        part = _PARTS.get(phase)
        self.enter(Part.FIRST_STEP if first and part is Part.TRAINING else part)

    def stepped(self) -> None:
        """A step is finished: those after the first are training."""
        if self._part is Part.FIRST_STEP:
            self.enter(Part.TRAINING)

    def seconds(self) -> dict[Part, float]:
        """Seconds of each part so far, in the order of a run."""
        found = dict(self._seconds)
        if self._part is not None:
            found[self._part] = found.get(self._part, 0.0) + self._clock() - self._since
        return {part: found[part] for part in Part if part in found}


def process_age(pid: int) -> float:
    """Seconds since a process began; 0 where the kernel does not tell."""
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    began = int(text.rpartition(")")[2].split()[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 0.0)
