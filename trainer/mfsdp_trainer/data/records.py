"""Records from files: lines of JSON, rows of parquet files and of datasets on disk.

Each is a dictionary and its place. Nothing loads a file into memory; libraries are imported when
the first such source is read.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.config.data import DataFormat
from mfsdp_trainer.errors import DataError, said

from .bad import BadRecords
from .sources import source_files

type Record = tuple[str, dict[str, Any]]

_ROWS: Final = 256
"""Rows that are in memory at a time."""


def records(source: DataSource, columns: Sequence[str], bad: BadRecords) -> Iterator[Record]:
    """All records of a source in order. Of tables only `columns`, as far as they are there.

    Raises DataError for a file that cannot be read, and past the limit of `bad`.
    """
    if source.format is DataFormat.ARROW:
        yield from _dataset(source, columns, bad)
        return
    for file in source_files(source):
        if source.format is DataFormat.PARQUET:
            yield from _parquet(file, columns, bad)
        else:
            yield from _lines(file, bad)


def _lines(file: Path, bad: BadRecords) -> Iterator[Record]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip() and (record := _line(line, f"{file}:{number}", bad)) is not None:
                    yield f"{file}:{number}", record
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def _line(line: bytes, where: str, bad: BadRecords) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all measure
        bad.add(where, f"not a line of JSON: {error}")
        return None
    if isinstance(record, dict):
        return record
    bad.add(where, f"a {type(record).__name__} where a JSON object is needed")
    return None


def _parquet(file: Path, columns: Sequence[str], bad: BadRecords) -> Iterator[Record]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    try:
        with ParquetFile(file) as table:
            wanted = _present(columns, table.schema_arrow.names, str(file))
            number = 0
            for batch in table.iter_batches(batch_size=_ROWS, columns=wanted):
                yield from _rows(batch, str(file), number, bad)
                number += batch.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: not a parquet file that can be read: {said(error)}") from error


def _rows(table: Any, where: str, first: int, bad: BadRecords) -> Iterator[Record]:
    """Rows of a piece of a table, numbered from `first`, without those that are damaged: text that
    is not UTF-8, or places outside the file, which would otherwise be read."""
    import pyarrow

    try:
        table.validate(full=True)
        rows = table.to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:
        if table.num_rows == 1:
            bad.add(f"{where} row {first}", f"cannot be read: {said(error)}")
            return
        for row in range(table.num_rows):
            yield from _rows(table.slice(row, 1), where, first + row, bad)
        return
    for number, row in enumerate(rows, start=first):
        yield f"{where} row {number}", row


def _dataset(source: DataSource, columns: Sequence[str], bad: BadRecords) -> Iterator[Record]:
    import pyarrow

    where = f"{source.path}{f' split {source.split}' if source.split else ''}"
    dataset = _open_dataset(source)
    wanted = _present(columns, dataset.column_names, where)
    number = 0
    try:
        for batch in dataset.select_columns(wanted).with_format("arrow").iter(batch_size=_ROWS):
            yield from _rows(batch, where, number, bad)
            number += batch.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"data.sources: {where} row {number} or one of the next {_ROWS} cannot be read: "
            f"{said(error)}"
        ) from error


def _open_dataset(source: DataSource) -> Any:
    import datasets  # type: ignore[import-untyped]

    path = str(source.path)
    if not Path(path).is_dir():
        raise DataError(
            f"data.sources: {path} is no directory in the container: format arrow reads what "
            "save_to_disk of the library datasets wrote"
        )
    try:
        found = datasets.load_from_disk(path)
    except Exception as error:
        raise DataError(
            f"data.sources: {path} is no dataset that save_to_disk wrote: {said(error)}"
        ) from error
    if not isinstance(found, datasets.DatasetDict):
        if source.split is not None:
            raise DataError(f"data.sources: {path} has no splits: leave out split")
        return found
    if source.split is None and len(found) == 1:
        return next(iter(found.values()))
    if source.split not in found:
        splits = ", ".join(found)
        raise DataError(f"data.sources: {path}: set split to one of its splits: {splits}")
    return found[source.split]


def _present(columns: Sequence[str], names: Sequence[str], where: str) -> list[str]:
    """Those of the columns that are there; the first has to be."""
    if columns[0] not in names:
        known = ", ".join(sorted(names)[:8])
        raise DataError(
            f"{where}: no column {columns[0]!r} (it has: {known}): set textField, messagesField or "
            "tokensField of this data source, and content to what the column holds"
        )
    return [column for column in columns if column in names]
