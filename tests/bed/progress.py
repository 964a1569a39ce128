"""What a person sees while the bed works: numbered steps, elapsed times, one line each.

On a terminal the running step's line is kept up to date; elsewhere (CI) a line is added every half
minute, so that a long build never looks like a hang.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


def duration(seconds: float) -> str:
    """Return a duration as a person writes it: 0.4s, 12s, 2m10s."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Progress:
    """Numbered steps on standard error; standard output stays free for results."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.number = 0
        self.live = sys.stderr.isatty()
        self.title = ""
        self.started = self.spoke = monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and at its end say how long it took."""
        self.number += 1
        self.title = title
        self.started = self.spoke = monotonic()
        self._write(f"{title} …", end="" if self.live else "\n")
        yield
        took = monotonic() - self.started
        if self.live or took > 1:
            self._write(f"{title}: {duration(took)}")

    def note(self, detail: str) -> None:
        """Show how far the running step is."""
        now = monotonic()
        if now - self.spoke < (0.5 if self.live else 30):
            return
        self.spoke = now
        took = duration(now - self.started)
        self._write(f"{self.title} … {took}: {detail}", end="" if self.live else "\n")

    def line(self, text: str) -> None:
        """Print a lasting line within a step."""
        self._write(text)

    def _write(self, text: str, end: str = "\n") -> None:
        start = "\r\033[K" if self.live else ""
        print(f"{start}[{self.number}/{self.total}] {text}", end=end, file=sys.stderr, flush=True)
