"""The files that `data.sources` names, in one order on every machine.

A path that is wrong or may not be read is a DataError that names it and the fix.
"""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.config.data import DataFormat
from mfsdp_trainer.errors import DataError

_NOT_STDLIB: Final = frozenset({"site-packages", "test", "tests", "idlelib", "__pycache__"})
_GLOB: Final = frozenset("*?[")
_SUFFIX: Final = {DataFormat.PARQUET: ".parquet"}
"""Of directories that hold other files too, what is read."""


def source_files(source: DataSource) -> list[Path]:
    """The files of a source, sorted. Raises DataError if there are none, or some cannot be seen."""
    if source.path is None:
        return _standard_library()
    try:
        return _found(source.path, _SUFFIX.get(source.format, ""))
    except OSError as error:
        raise DataError(
            f"data.sources: {error.filename or source.path} cannot be read: {error.strerror}: let "
            "the trainer's user read it, or name another path"
        ) from error


def _found(given: str, suffix: str) -> list[Path]:
    path = Path(given)
    if path.is_file():
        return [path]
    if path.is_dir():
        found: Iterator[Path] = (file for file in _below(path) if file.name.endswith(suffix))
    elif _GLOB & set(given):
        found = _matches(path)
    else:
        problem = "is no file" if path.exists() else "does not exist in the container"
        raise DataError(f"data.sources: {given} {problem}")
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise DataError(f"data.sources: no file matches {given}{suffix and f' ({suffix})'}")
    return files


def _below(directory: Path) -> Iterator[Path]:
    """Every file below a directory. Unlike a glob it stops at what it may not see: text that is
    missing without a word would train another model.

    Hidden entries are no data: a mounted ConfigMap has each file a second time in one. Nor is
    lost+found, which every new ext4 volume has, and only root may look into.
    """
    for parent, directories, names in os.walk(directory, onerror=_stop):
        directories[:] = [name for name in directories if not _is_hidden(name)]
        yield from (Path(parent, name) for name in names if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "lost+found"


def _stop(error: OSError) -> NoReturn:
    raise error


def _matches(pattern: Path) -> Iterator[Path]:
    """The files of a glob pattern: the part without wildcards is where it starts."""
    fixed = next(parent for parent in pattern.parents if not _GLOB & set(str(parent)))
    if fixed.is_dir():
        os.scandir(fixed).close()  # a glob takes a directory that may not be read for an empty one
    return fixed.glob(str(pattern.relative_to(fixed)))


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(
        file for file in root.rglob("*.py") if not _NOT_STDLIB & set(file.relative_to(root).parts)
    )
