"""Hands records to the trackers, each in a thread of its own behind a bounded queue."""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from mfsdp_trainer.errors import said

from .record import Kind, Record, Tracker, Value

_BACKLOG: Final = 1000
"""Records that may wait for a tracker."""
_RETRY: Final = 30.0
"""Seconds for which a tracker that failed is left alone."""
_CLOSING_WELL: Final = 30.0
_CLOSING_BADLY: Final = 5.0
"""Seconds for the last records, all trackers together. Less after a failure: PID 1 ends the
survivors of another rank's end soon."""

_log = logging.getLogger(__name__)


class Journal:
    """All trackers of a run. One without trackers is fine: every rank but rank 0 has that."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        """`trackers` by the field that asked for them."""
        self._threads = [_Thread(name, tracker) for name, tracker in trackers.items()]

    def tell(self, kind: Kind, step: int, values: Mapping[str, Value]) -> None:
        """Tell all trackers. Returns at once."""
        record = Record(kind, step, time.time(), values)
        for thread in self._threads:
            thread.take(record)

    @property
    def idle(self) -> bool:
        """Whether every record so far was taken, or given up."""
        return all(thread.idle for thread in self._threads)

    def close(self, *, well: bool) -> None:
        """Wait for the last records, as long as there is time."""
        deadline = time.monotonic() + (_CLOSING_WELL if well else _CLOSING_BADLY)
        _close(self._threads, deadline, well=well)


class _Thread:
    """One tracker and its thread."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._queue: queue.Queue[Record | None] = queue.Queue(_BACKLOG)
        self._first: Record | None = None
        self._well = True
        self._lost = 0
        self._warned = False
        self._idle_until = 0.0
        # Daemon: a server that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def take(self, record: Record) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._lost += 1
            self._warn("does not keep up: numbers are left out")

    def _serve(self) -> None:
        while (record := self._queue.get()) is not None:
            if record.kind is Kind.STEP and time.monotonic() < self._idle_until:
                self._lost += 1
            else:
                self._try(record)
            self._queue.task_done()
        try:
            self._tracker.close(well=self._well)
        except Exception as error:  # noqa: BLE001 - the boundary: a tracker never ends a run
            self._warn(f"cannot be closed: {said(error)}")

    def _try(self, record: Record) -> None:
        # What opens a tracker is tried until it is taken: nothing else makes sense before it.
        self._first = record if record.kind is Kind.RUN else self._first
        try:
            if self._first is not None:
                self._tracker.take(self._first)
                self._first = None
            if record.kind is not Kind.RUN:
                self._tracker.take(record)
        except Exception as error:  # noqa: BLE001 - the boundary: a tracker never ends a run
            self._lost += 1
            self._idle_until = time.monotonic() + _RETRY
            self._warn(f"cannot take numbers; the run goes on without: {said(error)}")

    def _warn(self, problem: str) -> None:
        """Once: a server that is away for the night is worth one line."""
        if not self._warned:
            _log.warning("%s %s", self._name, problem)
        self._warned = True

    @property
    def idle(self) -> bool:
        return not self._queue.unfinished_tasks

    def ask_to_end(self, *, well: bool) -> None:
        self._well = well
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._warn("does not keep up: its last numbers are left out")

    def wait(self, seconds: float) -> None:
        self._thread.join(max(seconds, 0.0))
        if self._thread.is_alive():
            self._warn("did not finish in time: its last numbers may be missing")
        elif self._lost:
            _log.warning("%s: %d records were left out", self._name, self._lost)


def _close(threads: Iterable[_Thread], deadline: float, *, well: bool) -> None:
    for thread in threads:
        thread.ask_to_end(well=well)
    for thread in threads:
        thread.wait(deadline - time.monotonic())
