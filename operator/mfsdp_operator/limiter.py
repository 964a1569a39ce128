"""A token bucket for writes: the API server serves others too."""

import asyncio
import time


class Limiter:
    """Lets `burst` calls through at once, and `rate` a second on average after that."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._refilled = time.monotonic()

    async def wait(self) -> None:
        """Return when the caller may go."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        # Below zero the bucket holds those that wait: each sleeps for its own place in the line.
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)
