"""The claim of one run on a prefix of an object store: the object `.lock`.

There are no locks there that go with their holder, so the holder writes the object anew every few
seconds, each time on the condition that it is still the version it wrote before. Who comes later
watches: a lock that changes is held; one that does not for a minute is left over and taken, again
on the condition that it is that version. No clocks are compared. An earlier attempt of the same
job is passed over at once: the operator has seen to its end.
"""

import json
import logging
import os
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

from mfsdp_trainer.errors import CheckpointError

from .manifest import attempt, job
from .objects import Objects, os_errors
from .store import explained

_LOCK: Final = ".lock"

_log = logging.getLogger(__name__)


@dataclass
class Lease:
    """One run's claim; for rank 0."""

    files: Objects
    renewal: float = 15.0
    """Seconds between two writes of the holder."""
    patience: float = 60.0
    """Seconds without one after which a lock is left over: four missed."""
    _tag: str | None = None
    """Version of the lock that we wrote; None: none is held."""
    _beats: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def acquire(self, stack: ExitStack) -> None:
        """Claim until the stack is closed. Raises CheckpointError where another run holds it."""
        url = self.files.url(_LOCK)
        try:
            with explained(url):
                self._take()
        except _Unconditional:
            _log.warning("%s: this store has no conditional writes: start no second run there", url)
            return
        threading.Thread(target=self._renew_on, name="lease", daemon=True).start()
        stack.callback(self._release)

    def require(self) -> None:
        """Make sure that the claim still is ours. Raises CheckpointError where it was taken."""
        if self._tag is None:
            return
        with explained(self.files.url(_LOCK)):
            self._renew()

    def _take(self) -> None:
        seen: str | None = None
        deadline = time.monotonic() + self.patience
        while not self._write(None):
            found = self._found()
            if found is None:
                continue
            text, tag = found
            if _earlier_attempt(text) or (tag == seen and time.monotonic() > deadline):
                if self._write(tag):
                    return
                continue
            if seen is None:
                seen = tag
                _log.info("waits to see whether the run lives that holds %s", self.files.url(_LOCK))
            elif tag != seen:
                raise CheckpointError(
                    f"checkpoint.path: {self.files.url('')} is in use by another run "
                    f"({_holder(text)}): choose another prefix, or end that run"
                )
            time.sleep(self.renewal / 10)

    def _found(self) -> tuple[str, str | None] | None:
        try:
            return self.files.text(_LOCK)
        except FileNotFoundError:
            return None

    def _write(self, over: str | None) -> bool:
        """Write the lock over a version of it, or where there is none; whether that was so."""
        self._beats += 1
        text = json.dumps(
            {"holder": _ourselves(), "job": job(), "attempt": attempt()} | {"beat": self._beats}
        ).encode()
        try:
            with os_errors(self.files.url(_LOCK)):
                answer = self._put(text, over)
        except _Lost:
            return False
        self._tag = answer
        return True

    def _put(self, text: bytes, over: str | None) -> str | None:
        mode: Any = "create" if over is None else {"e_tag": over}
        try:
            return obstore.put(self.files.store, _LOCK, text, mode=mode)["e_tag"]
        except (AlreadyExistsError, PreconditionError):
            raise _Lost from None
        except FileNotFoundError:
            if over is None:
                raise  # the bucket
            raise _Lost from None
        except NotSupportedError:
            raise _Unconditional from None

    def _renew_on(self) -> None:
        while not self._ended.wait(self.renewal):
            try:
                self._renew()
            except (OSError, CheckpointError) as error:
                _log.warning("%s could not be renewed: %s", self.files.url(_LOCK), error)

    def _renew(self) -> None:
        with self._guard:
            if not self._ended.is_set() and not self._write(self._tag):
                raise CheckpointError(
                    f"checkpoint.path: {self.files.url(_LOCK)} was taken by another run: this one "
                    "publishes nothing more"
                )

    def _release(self) -> None:
        self._ended.set()
        with self._guard:
            found = self._found()
            if found is not None and found[1] == self._tag:
                self.files.rm_file(_LOCK)
            self._tag = None


class _Lost(Exception):  # noqa: N818 - not an error, an answer
    """The lock is not the version that it was to be."""


class _Unconditional(Exception):  # noqa: N818 - the same
    """The store cannot write on a condition."""


def _ourselves() -> str:
    return f"host {socket.gethostname()}, process {os.getpid()}"


def _earlier_attempt(text: str) -> bool:
    try:
        found = json.loads(text)
        return bool(job()) and found["job"] == job() and int(found["attempt"]) < int(attempt())
    except (ValueError, KeyError, TypeError):
        return False


def _holder(text: str) -> str:
    try:
        found = json.loads(text)
        return f"{found['holder']}, job {found['job']}" if found["job"] else str(found["holder"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
