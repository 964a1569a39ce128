"""What an attempt came to: its last lines in the log, and the last record of the trackers."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from .memory import memory_in_use
from .say import duration, gib
from .speed import Scale
from .timeline import UNTIL_FIRST_STEP, Part
from .trackers.record import Value

_log = logging.getLogger(__name__)


@dataclass
class Best:
    """The lowest loss so far, and the last one."""

    last: float | None = None
    lowest: float | None = None
    at: int = 0
    """Step of the lowest."""

    def take(self, step: int, loss: float) -> None:
        """Compare one more."""
        self.last = loss
        if self.lowest is None or loss < self.lowest:
            self.lowest, self.at = loss, step

    def __str__(self) -> str:
        return f"{self.last:.4f} (lowest {self.lowest:.4f} at step {self.at})"


class Totals:
    """What adds up over the steps of an attempt."""

    def __init__(self, bad_records: int = 0) -> None:
        self.bad_records = bad_records
        """Of the data, left out."""
        self.step = 0
        """Newest finished step of the run."""
        self.steps = 0
        """Steps of this attempt."""
        self.tokens = 0
        self.first_tokens = 0
        """Of them those of the first step, whose time is no measure of speed."""
        self.train = Best()
        self.held_out = Best()
        self.checkpoint: tuple[int, str] | None = None
        self.export: str | None = None

    def count(self, step: int, loss: float, tokens: int) -> None:
        """One more step."""
        self.first_tokens = self.first_tokens if self.steps else tokens
        self.step = step
        self.steps += 1
        self.tokens += tokens
        if tokens:  # a step of which nothing is trained on has a loss of 0, which is no best
            self.train.take(step, loss)

    def evaluated(self, step: int, loss: float) -> None:
        """One more evaluation."""
        self.held_out.take(step, loss)

    def values(self, seconds: Mapping[Part, float], scale: Scale) -> dict[str, Value]:
        """Everything by name, for machines; None where it is not known."""
        training = seconds.get(Part.TRAINING, 0.0)
        after_first = self.tokens - self.first_tokens
        rate = after_first / training if training and after_first else None
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "bad_records": self.bad_records,
            "loss": self.train.last,
            "lowest_loss": self.train.lowest,
            "lowest_loss_step": self.train.at,
            "eval_loss": self.held_out.last,
            "lowest_eval_loss": self.held_out.lowest,
            "lowest_eval_loss_step": self.held_out.at,
            "tokens_per_second": rate,
            "mfu": None if rate is None else scale.mfu(rate),
            "peak_memory_bytes": memory_in_use().peak,
            "checkpoint_step": self.checkpoint[0] if self.checkpoint else None,
            "checkpoint_path": self.checkpoint[1] if self.checkpoint else None,
            "export_path": self.export,
            "seconds": {str(part): round(spent, 3) for part, spent in seconds.items()},
        }


def say_start(seconds: Mapping[Part, float]) -> None:
    """One line: how long it took until the first step was done, and with what."""
    spent = {part: seconds[part] for part in UNTIL_FIRST_STEP if part in seconds}
    _log.info("first step done after %s: %s", duration(sum(spent.values())), _parts(spent))


def say_summary(totals: Totals, values: Mapping[str, Value]) -> None:
    """A few lines: work, losses, time, memory, and where the results are."""
    seconds = values["seconds"]
    assert isinstance(seconds, Mapping)
    rate, mfu, peak = values["tokens_per_second"], values["mfu"], values["peak_memory_bytes"]
    speed = f", {rate:,.0f} tokens/s after the first step" if isinstance(rate, float) else ""
    used = f", MFU {mfu:.1%}" if isinstance(mfu, float) else ""
    _log.info("summary: %d steps, %s tokens%s%s", totals.steps, f"{totals.tokens:,}", speed, used)
    if totals.train.last is not None:
        _log.info("summary: loss %s", totals.train)
    if totals.held_out.last is not None:
        _log.info("summary: loss on held-out text %s", totals.held_out)
    if totals.bad_records:
        _log.info("summary: %d bad records of the data were left out", totals.bad_records)
    _log.info("summary: %s: %s", duration(sum(seconds.values())), _parts(seconds))
    assert isinstance(peak, int)
    _log.info("summary: peak memory of rank 0 %s", gib(peak))
    if totals.checkpoint:
        _log.info("summary: checkpoint of step %d in %s", *totals.checkpoint)
    if totals.export:
        _log.info("summary: the model is in %s", totals.export)


def _parts[Name: str](seconds: Mapping[Name, float]) -> str:
    said = (f"{part.replace('_', ' ')} {duration(spent)}" for part, spent in seconds.items())
    return ", ".join(said)
