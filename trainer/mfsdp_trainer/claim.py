"""One run at a time in a directory: two would remove each other's checkpoints.

A lock that the kernel drops when its holder dies, however it dies; on NFS the server does. Imports
no torch: `mfsdp local` claims its directory too.
"""

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .contract import Env

LOCK: Final = ".lock"
_PAUSE: Final = 0.2

_log = logging.getLogger(__name__)


class ClaimedError(Exception):
    """Another run has the directory; the message says which, and what to do."""


@contextmanager
def claimed(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Sole use of an existing directory, waiting `patience` seconds for a run that is just ending.

    Raises ClaimedError, and OSError where the directory cannot be written. A file system without
    locks is used without, and a warning.
    """
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor, directory / LOCK, time.monotonic() + patience)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _ourselves().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ClaimedError(_explain(descriptor, file)) from None
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s): start no second run there", file, error.strerror
            )
            return
        else:
            return
        time.sleep(_PAUSE)


def _explain(descriptor: int, file: Path) -> str:
    holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
    return (
        f"{file.parent} is in use by another run ({holder or 'unknown'}): choose another "
        f"directory, or end that run (if it is gone with its machine, delete {file})"
    )


def _ourselves() -> str:
    job = os.environ.get(Env.JOB_UID)
    return f"host {socket.gethostname()}, process {os.getpid()}" + (f", job {job}" if job else "")
