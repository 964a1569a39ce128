"""Locks between concurrent runs: held by the kernel, so a killed run never leaves one behind."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _acquire(path: Path, what: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        print(f"waiting for {what} (process {holder}) …", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def _is_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock on `path`; say so when another run must be waited for."""
    handle = _acquire(path, what)
    while not _is_file(handle, path):  # the run before us removed it (`down` leaves no files)
        os.close(handle)
        handle = _acquire(path, what)
    try:
        yield
    finally:
        os.close(handle)
