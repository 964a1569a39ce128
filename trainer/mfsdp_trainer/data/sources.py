"""Documents from local files: what `data.sources` names, in one order on every machine.

A wrong path, a file that is not text, a line that is not JSON: each is a DataError that names the
file, the line and the fix.
"""

import json
import os
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.config.data import DataFormat
from mfsdp_trainer.errors import DataError

_NOT_STDLIB: Final = frozenset({"site-packages", "test", "tests", "idlelib", "__pycache__"})
_GLOB: Final = frozenset("*?[")


def source_files(source: DataSource) -> list[Path]:
    """The files of a source, sorted. Raises DataError if there are none, or some cannot be seen."""
    if source.path is None:
        return _standard_library()
    try:
        return _found(source.path)
    except OSError as error:
        raise DataError(
            f"data.sources: {error.filename or source.path} cannot be read: {error.strerror}: let "
            "the trainer's user read it, or name another path"
        ) from error


def _found(given: str) -> list[Path]:
    path = Path(given)
    if path.is_file():
        return [path]
    if path.is_dir():
        found: Iterator[Path] = _below(path)
    elif _GLOB & set(given):
        found = _matches(path)
    else:
        problem = "is no file" if path.exists() else "does not exist in the container"
        raise DataError(f"data.sources: {given} {problem}")
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise DataError(f"data.sources: no file matches {given}")
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


def documents(sources: Sequence[DataSource]) -> Iterator[str]:
    """Every document of the sources that is not empty, in order."""
    for source in sources:
        read = _jsonl if source.format is DataFormat.JSONL else _text
        for file in source_files(source):
            yield from (document for document in read(file, source) if document)


def _text(file: Path, source: DataSource) -> Iterator[str]:
    try:
        if source.builtin is not None:
            with tokenize.open(file) as stream:
                yield stream.read()
        else:
            yield file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, SyntaxError) as error:
        raise DataError(
            f"{file}: not UTF-8 text ({error}): convert it, or leave it out of data.sources"
        ) from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def _jsonl(file: Path, source: DataSource) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _json_text(line, source.text_field, f"{file}:{number}")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def _json_text(line: bytes, field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all measure
        raise DataError(f"{where}: not a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a {type(record).__name__} where a JSON object is needed")
    text = record.get(field)
    if not isinstance(text, str):
        keys = ", ".join(sorted(map(str, record))[:8])
        raise DataError(
            f"{where}: no text under {field!r} (it has: {keys}): set textField of this data source"
        )
    return _without_surrogates(text)


def _without_surrogates(text: str) -> str:
    """JSON can escape half a character, which no tokenizer takes: U+FFFD stands for each."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
