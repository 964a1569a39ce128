"""Shows snapshots of a run as they come: a live bar on a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from .snapshot import Snapshot, duration, line

_PLAIN_SECONDS: Final = 10.0
_BAR_WIDTH: Final = 40


class Display(Protocol):
    """A place to show snapshots, for use in a `with`."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the newest snapshot."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_display() -> Display:
    """What suits standard output."""
    console = Console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay()


class PlainDisplay:
    """A line whenever the state changes, and every ten seconds while numbers do."""

    def __init__(
        self,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write or _print
        self._clock = clock
        self._started = clock()
        self._state: tuple[str, ...] = ()
        self._last = ""
        self._at = float("-inf")

    def show(self, snapshot: Snapshot) -> None:
        """Print the snapshot if it says something new."""
        now = self._clock()
        state = (snapshot.state, snapshot.pods, snapshot.message)
        text = line(snapshot)
        if state == self._state and (text == self._last or now - self._at < _PLAIN_SECONDS):
            return
        told = snapshot.message if state[2:] != self._state[2:] else ""
        elapsed = duration(now - (snapshot.started or self._started))
        self._write(f"[{elapsed}] {text}" + (f"  ({told})" if told else ""))
        self._state, self._last, self._at = state, text, now

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class LiveDisplay:
    """Two lines that stay in place: what the job does, and a bar with the numbers."""

    def __init__(self, console: Console) -> None:
        self._started = time.time()
        self._snapshot: Snapshot | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=8, transient=False
        )

    def show(self, snapshot: Snapshot) -> None:
        """Take over the snapshot; the terminal follows by itself."""
        self._snapshot = snapshot

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def _render(self) -> Group:
        shown = self._snapshot
        if shown is None:
            return Group(self._spinner)
        elapsed = duration(time.time() - (shown.started or self._started))
        # Text, never markup: names and messages come from outside.
        head = Table.grid(padding=(0, 2))
        head.add_row(
            self._spinner,
            Text(shown.name, style="bold"),
            Text(shown.state, style="cyan"),
            Text(shown.engine, style="dim"),
            Text(shown.pods),
            Text(elapsed, style="dim"),
        )
        body = Table.grid(padding=(0, 2))
        body.add_row(*_progress(shown))
        rows = [head, body]
        return Group(*rows, Text(shown.message, style="dim")) if shown.message else Group(*rows)


def _progress(shown: Snapshot) -> tuple[ProgressBar | Text, ...]:
    if not shown.total_steps:
        return (Text(""),)
    bar = ProgressBar(total=shown.total_steps, completed=shown.step, width=_BAR_WIDTH)
    steps = Text(f"step {shown.step}/{shown.total_steps}", style="bold")
    return bar, steps, Text(shown.numbers)


def _print(text: str) -> None:
    print(text, flush=True, file=sys.stdout)
