"""Files that others may read at any moment: they appear whole, durable, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file or the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a small file: readers see the old text or the new one, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def remove(path: Path) -> None:
    """Remove a file, or a directory and all in it as far as it can be; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside `target` to fill and publish; what is left of it is removed.

    So is what a killed process left there. For one process of a run alone, rank 0.
    """
    for left in target.parent.glob(f".{target.name}.[0-9]*"):
        remove(left)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def publish_directory(scratch: Path, target: Path) -> None:
    """Give a filled directory its name, after all in it is durable. Replaces an older one."""
    for file in scratch.rglob("*"):
        sync(file)
    sync(scratch)
    replaced = target.with_name(f".{target.name}.replaced")
    remove(replaced)
    if target.exists():
        target.rename(replaced)
    scratch.rename(target)
    sync(target.parent)
    remove(replaced)
