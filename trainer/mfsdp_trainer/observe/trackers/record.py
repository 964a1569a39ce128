"""One thing that happened in a run, as trackers are told it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

type Value = float | int | str | Mapping[str, float] | None


class Kind(StrEnum):
    """What a record is about."""

    RUN = "run"
    """The first of an attempt: what the run is, and where it goes on from."""
    STEP = "step"
    """A logging interval ended with this step."""
    EVALUATION = "evaluation"
    """Loss on held-out text."""
    CHECKPOINT = "checkpoint"
    """A checkpoint is published."""
    EXPORT = "export"
    """The finished model is written."""
    END = "end"
    """The last of an attempt that could say so: why it ended, and what it came to."""


@dataclass(frozen=True)
class Record:
    """One thing that happened."""

    kind: Kind
    step: int
    """Finished optimizer steps."""
    time: float
    """Unix seconds."""
    values: Mapping[str, Value]
    """By snake_case names; None where a number is not known."""

    @property
    def numbers(self) -> dict[str, float]:
        """The values that can be drawn, by their names."""
        return {
            name: float(value)
            for name, value in self.values.items()
            if isinstance(value, int | float)
        }


class Tracker(Protocol):
    """A place for records. Called from one thread of its own, in order."""

    def take(self, record: Record) -> None:
        """Keep a record. May raise anything; the next record is tried again later."""

    def close(self, *, well: bool) -> None:
        """Finish; `well` if the run ended as it should."""
