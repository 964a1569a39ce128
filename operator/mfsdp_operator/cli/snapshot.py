"""Where a run stands, as `mfsdp watch` and `mfsdp local` show it; and how one line says it.

Everything from outside (a job's status, a trainer's answer) is made safe to print here.
"""

import re
from dataclasses import dataclass

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True)
class Snapshot:
    """One look at a run. What is not known is None or empty."""

    name: str
    phase: str = ""
    """The job's phase."""
    doing: str = ""
    """The trainer's phase."""
    ready: str = ""
    """Pods that are ready, e.g. 1/2."""
    engine: str = ""
    restarts: int = 0
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    tokens_per_second: float | None = None
    eta_seconds: float | None = None
    resumed_from: int | None = None
    started: float | None = None
    """When the run began, in Unix seconds."""
    message: str = ""
    """One sentence about the job."""

    @property
    def state(self) -> str:
        """Phase, and what the trainer does meanwhile."""
        phases = [part for part in (self.phase, self.doing) if part]
        return " ".join(dict.fromkeys(phases)) or "waiting"

    @property
    def numbers(self) -> str:
        """Loss, speed and time to go."""
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.eval_loss is not None:
            parts.append(f"held-out {self.eval_loss:.3f}")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:,.0f} tokens/s")
        if self.eta_seconds is not None and self.step < self.total_steps:
            parts.append(f"ETA {duration(self.eta_seconds)}")
        return "  ".join(parts)

    @property
    def pods(self) -> str:
        """Pods and restarts."""
        parts = [f"pods {self.ready}"] if self.ready else []
        if self.restarts:
            parts.append(f"restarts {self.restarts}")
        if self.resumed_from:
            parts.append(f"resumed from step {self.resumed_from}")
        return "  ".join(parts)


def line(snapshot: Snapshot) -> str:
    """The snapshot in one line, for logs."""
    steps = f"step {snapshot.step}/{snapshot.total_steps}" if snapshot.total_steps else ""
    parts = (snapshot.name, snapshot.state, snapshot.pods, steps, snapshot.numbers)
    return "  ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """For instance 45s, 3m05s, 2h07m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def printable(text: object, limit: int = 300) -> str:
    """A text from outside without control characters, which could take over a terminal."""
    clean = _UNPRINTABLE.sub(" ", str(text)).strip()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def last_line(text: str) -> str:
    """What a program said last, safe to print; of a traceback, its error. Empty if nothing."""
    said = [part for part in text.splitlines() if part.strip()]
    return printable(said[-1], 2000) if said else ""
