"""Being asked to stop: SIGTERM from the kubelet, Ctrl-C by hand.

The first signal asks the workers for a checkpoint, the second or the deadline kills them. Imported
before anything slow: standard library only.
"""

import signal
import time
from enum import Enum
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop(Enum):
    """How far a stop has come."""

    NO = "no"
    ASKED = "workers were asked for a checkpoint"
    EARLY = "ended before the first step: nothing to save"
    KILLED = "workers were killed before their checkpoint"


class StopRequests:
    """Counts the signals that ask for an end."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._count = 0

    def listen(self) -> None:
        """Take the signals; those that were ignored (nohup) stay so. Main thread only."""
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._on_signal)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._first is None:
            self._first = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self._count > 0

    @property
    def insisted(self) -> bool:
        """Whether a second signal came: no time for anything any more."""
        return self._count > 1

    def impatience(self, timeout: float) -> str:
        """Why workers must be killed now, `timeout` seconds being granted to them; or nothing."""
        if self.insisted:
            return "a second signal came"
        if self._first is not None and time.monotonic() > self._first + timeout:
            return f"{timeout:g} s have passed"
        return ""
