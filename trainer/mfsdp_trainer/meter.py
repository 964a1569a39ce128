"""The line that a person reads every few steps, and the same numbers for /progress."""

import logging
import resource
import time
from dataclasses import dataclass

import torch

from .reporting import Reporter

_GIB = 1 << 30

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
    """Counts tokens and time between two lines."""

    def __init__(self, reporter: Reporter, *, first: bool, every: int, steps: int) -> None:
        """`first` is rank 0, which alone prints; `steps` is the last step of the run."""
        self._reporter = reporter
        self._first = first
        self._every = every
        self._steps = steps
        self.restart()

    def restart(self) -> None:
        """Leave out what was not training: an evaluation or a save is no step."""
        self._since = time.monotonic()
        self._tokens = 0
        self._counted = 0

    def count(self, facts: StepFacts) -> None:
        """Take in a finished step; print and publish every so many, and the last."""
        self._reporter.heartbeat(facts.step)
        self._tokens += facts.tokens
        self._counted += 1
        if facts.step % self._every and facts.step != self._steps:
            return
        elapsed = time.monotonic() - self._since
        rate = self._tokens / elapsed
        eta = elapsed / self._counted * (self._steps - facts.step)
        self.restart()
        if self._first:
            self._say(facts, rate, eta)

    def _say(self, facts: StepFacts, rate: float, eta: float) -> None:
        self._reporter.progress(
            step=facts.step,
            loss=facts.loss,
            grad_norm=facts.grad_norm,
            learning_rate=facts.learning_rate,
            tokens_per_second=rate,
            eta_seconds=eta,
        )
        _log.info(
            "step %d/%d  loss %.4f  norm %.3f  lr %.2e  %s tokens/s  ETA %s  memory %.2f GiB",
            facts.step,
            self._steps,
            facts.loss,
            facts.grad_norm,
            facts.learning_rate,
            f"{rate:,.0f}",
            duration(eta),
            peak_memory(),
        )


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 m 20 s, 5 h 03 m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def peak_memory() -> float:
    """GiB that this rank needed at most: of the GPU if it has one, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_reserved() / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GIB
