"""The work queue: keys, not events. A key waits in it once, and one worker at a time works on it.

What arrives while its key is being worked on is kept and worked on after. A key whose work failed
comes back after a delay of its own that doubles; other keys do not wait for it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Hashable

from .timers import Timers

FIRST_DELAY = 0.5
LAST_DELAY = 120.0


class WorkQueue[K: Hashable]:
    """A de-duplicating queue with delays."""

    def __init__(self, timers: Timers[K]) -> None:
        self._timers = timers
        self._waiting: deque[K] = deque()
        self._queued: set[K] = set()
        self._active: set[K] = set()
        self._failures: dict[K, int] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: K) -> None:
        """Have the key worked on, soon and at least once from now."""
        if key in self._queued:
            return
        self._queued.add(key)
        if key not in self._active:
            self._waiting.append(key)
            self._arrived.set()

    def add_at(self, key: K, when: float) -> None:
        """Have the key worked on at a time (Unix seconds)."""
        self._timers.set(key, when)

    async def get(self) -> K:
        """The next key; it is the caller's until `done` or `failed`."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        key = self._waiting.popleft()
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a key went well."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: K, now: float) -> float:
        """The work on a key failed: it comes back later. Returns the delay, in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay: float = min(FIRST_DELAY * 2 ** min(failures - 1, 20), LAST_DELAY)
        delay *= random.uniform(0.8, 1.2)
        self._timers.set(key, now + delay)
        self._release(key)
        return delay

    def _release(self, key: K) -> None:
        self._active.discard(key)
        if key in self._queued:
            self._waiting.append(key)
            self._arrived.set()
