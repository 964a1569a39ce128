"""One heap for everything that is due later: back-offs, settling, deadlines.

A key has one timer, the earliest that was set: when it fires, the key is looked at, and whoever
looks sets the next one.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Hashable


class Timers[K: Hashable]:
    """Calls `fire(key)` at or after the time set for the key. Times are Unix seconds."""

    def __init__(self, fire: Callable[[K], None]) -> None:
        self._fire = fire
        self._heap: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, when: float) -> None:
        """Fire no later than `when` for this key."""
        if when >= self._due.get(key, float("inf")):
            return
        self._due[key] = when
        self._count += 1  # keys need not be comparable
        heapq.heappush(self._heap, (when, self._count, key))
        self._changed.set()

    def cancel(self, key: K) -> None:
        """Forget the key."""
        self._due.pop(key, None)

    async def run(self) -> None:
        """Fire timers for ever."""
        while True:
            self._changed.clear()
            self.fire_due(time.time())
            wait = self._heap[0][0] - time.time() if self._heap else None
            try:
                # The wall clock may jump: look again at least once a minute.
                await asyncio.wait_for(self._changed.wait(), min(wait or 60.0, 60.0))
            except TimeoutError:
                continue

    def fire_due(self, now: float) -> None:
        """Fire every timer that is due."""
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            # An entry that a nearer one has replaced, or that was cancelled, is only dropped.
            if self._due.get(key) == when:
                del self._due[key]
                self._fire(key)
