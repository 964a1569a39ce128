"""The line that a person reads every few steps, and the same numbers for /progress and trackers."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mfsdp_trainer.contract import Reason
from mfsdp_trainer.errors import reason_of
from mfsdp_trainer.reporting import Reporter

from .memory import memory_in_use
from .say import duration, gib
from .speed import Scale
from .summary import Totals, say_start, say_summary
from .trackers import Journal, Kind
from .trackers.record import Value

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepFacts:
    """What one optimizer step came to, the same on every rank."""

    step: int
    """Counted from 1."""
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    """Trained over all ranks."""


class Meter:
    """Counts tokens and time between two lines, and tells what else happened to a run.

    Every rank has one, and gives signs of life through it; rank 0's alone prints and publishes.
    """

    def __init__(
        self,
        reporter: Reporter,
        journal: Journal,
        scale: Scale,
        facts: Mapping[str, Value],
        *,
        first: bool,
        every: int,
        steps: int,
        bad_records: int = 0,
    ) -> None:
        """`facts` say what the run is; `first` is rank 0; `steps` is the last step of the run;
        `bad_records` of its data were left out."""
        self._reporter = reporter
        self._journal = journal
        self._scale = scale
        self._facts = facts
        self._first = first
        self._every = every
        self._steps = steps
        self._totals = Totals(bad_records)
        self._held_up: dict[int, float] = {}
        self.restart()

    def begin(self, step: int) -> None:
        """An attempt begins to train after `step`, or goes on from there."""
        self._totals.step = step
        self._reporter.progress(step=step)
        self._journal.tell(Kind.RUN, step, {**self._facts, "total_steps": self._steps})

    def restart(self) -> None:
        """Leave out what was not training: an evaluation or a save is no step."""
        self._since = time.monotonic()
        self._tokens = 0
        self._counted = 0

    def count(self, facts: StepFacts) -> None:
        """Take in a finished step; print and publish every so many, and the last."""
        starting = not self._totals.steps
        self._totals.count(facts.step, facts.loss, facts.tokens)
        self._tokens += facts.tokens
        self._counted += 1
        if facts.step % self._every and facts.step != self._steps:
            self._reporter.heartbeat(facts.step)
        else:
            self._publish(facts)
        if starting and self._first:
            say_start(self._reporter.timeline.seconds())

    def _publish(self, facts: StepFacts) -> None:
        memory = memory_in_use()
        self._reporter.heartbeat(facts.step, memory.now)
        elapsed = time.monotonic() - self._since
        rate = self._tokens / elapsed
        seconds = elapsed / self._counted
        self.restart()
        if not self._first:
            return
        numbers: dict[str, float | None] = {
            "loss": facts.loss,
            "grad_norm": facts.grad_norm,
            "learning_rate": facts.learning_rate,
            "tokens_per_second": rate,
            "tokens_per_second_per_rank": rate / self._scale.ranks,
            "mfu": self._scale.mfu(rate),
            "step_seconds": seconds,
            "tokens": self._totals.tokens,
            "memory_bytes": memory.now,
            "peak_memory_bytes": memory.peak,
            "eta_seconds": seconds * (self._steps - facts.step),
        }
        self._reporter.progress(step=facts.step, **numbers)
        self._journal.tell(Kind.STEP, facts.step, numbers)
        self._say(facts, rate, seconds * (self._steps - facts.step), memory.now, memory.peak)

    def _say(self, facts: StepFacts, rate: float, eta: float, held: int, peak: int) -> None:
        share, mfu = rate / self._scale.ranks, self._scale.mfu(rate)
        parts = [
            f"step {facts.step}/{self._steps}",
            f"loss {facts.loss:.4f}",
            f"norm {facts.grad_norm:.3f}",
            f"lr {facts.learning_rate:.2e}",
            f"{rate:,.0f} tokens/s ({share:,.0f} a {self._scale.unit})",
            *([f"MFU {mfu:.1%}"] if mfu is not None else []),
            f"memory {gib(held)} (peak {gib(peak)})",
            f"ETA {duration(eta)}",
        ]
        _log.info("  ".join(parts))

    def evaluated(self, step: int, loss: float) -> None:
        """An evaluation after `step` gave this mean loss per held-out token."""
        self._totals.evaluated(step, loss)
        self._reporter.progress(eval_loss=loss)
        self._journal.tell(Kind.EVALUATION, step, {"loss": loss})
        if self._first:
            _log.info("step %d: loss on held-out text %.4f", step, loss)

    def held_up(self, step: int, seconds: float) -> None:
        """The checkpoint of `step` held training up for so long; it may still be under way."""
        self._held_up[step] = seconds

    def saved(self, step: int, place: str) -> None:
        """A checkpoint of `step` is published."""
        seconds = self._held_up.pop(step, 0.0)
        self._totals.checkpoint = (step, place)
        self._reporter.progress(checkpoint_step=step, checkpoint_seconds=seconds)
        self._journal.tell(Kind.CHECKPOINT, step, {"seconds": seconds, "path": place})
        if self._first:
            _log.info("checkpoint of step %d published; it took %s", step, duration(seconds))

    def exported(self, place: str) -> None:
        """The finished model is written."""
        self._totals.export = place
        self._journal.tell(Kind.EXPORT, self._totals.step, {"path": place})
        if self._first:
            _log.info("the model is exported to %s", place)

    def end(self, reason: Reason) -> None:
        """The attempt ends: the summary, and the trackers' last words."""
        values = self._totals.values(self._reporter.timeline.seconds(), self._scale)
        self._journal.tell(Kind.END, self._totals.step, {"reason": str(reason), **values})
        # After a failure the failure is the news.
        if self._first and self._totals.steps and reason in (Reason.DONE, Reason.PREEMPTED):
            say_summary(self._totals, values)
        self._journal.close(well=reason is Reason.DONE)


@contextmanager
def told(meter: Meter) -> Iterator[None]:
    """Surrounds an attempt from `begin` on: however it ends, the meter tells."""
    try:
        yield
    except BaseException as error:
        meter.end(reason_of(error))
        raise
    meter.end(Reason.DONE)
