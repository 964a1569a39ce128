"""Megatron's tokenised datasets, NAME.bin and NAME.idx, used where they are: no token is copied.

megatron-core reads the index. What is kept beside the checkpoints is only what was found out by
reading the tokens once: that all are in the vocabulary, and their digest.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any, Final

import numpy as np

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.errors import DataError, said

from .encode import outside
from .store import StreamFacts
from .stream import Offsets, Stream

_CHUNK: Final = 1 << 24
"""Tokens that are checked at a time."""


def dataset_files(source: DataSource) -> list[Path]:
    """The index and the tokens of a dataset. Raises DataError if one is missing."""
    path = Path(str(source.path))
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    files = [prefix.with_name(prefix.name + suffix) for suffix in (".idx", ".bin")]
    for file in files:
        if not file.is_file():
            raise DataError(
                f"data.sources: {file} does not exist in the container: format megatron needs the "
                "path of one .bin and .idx, without the suffix"
            )
    return files


class MegatronDataset:
    """An open dataset."""

    def __init__(self, source: DataSource) -> None:
        """Raises DataError if it is not what megatron-core wrote."""
        index, self._file = dataset_files(source)
        dtype, ends = _read_index(index)
        found = self._file.stat().st_size
        if found != int(ends[-1]) * dtype.itemsize:
            raise DataError(
                f"{self._file}: {found} bytes where {index} tells of {int(ends[-1])} tokens of "
                f"{dtype}: the two are not of one dataset, or one is not whole"
            )
        self.tokens = np.memmap(self._file, dtype=dtype, mode="r")
        self._ends = ends

    def split(self, fraction: float) -> tuple[Stream, Stream]:
        """Training and held-out documents: the last `fraction` of them is held out, where they
        lie. (By content, as other sources do it, would have to copy them.)"""
        begins = np.concatenate([[0], self._ends[:-1]])
        documents = len(begins) - round(len(begins) * fraction)
        border = int(self._ends[documents - 1]) if documents else 0
        return (
            Stream(self.tokens[:border], begins[:documents]),
            Stream(self.tokens[border:], begins[documents:] - border),
        )

    def check(self, size: int) -> None:
        """Raises DataError for the first token that a vocabulary of `size` tokens does not have."""
        for first in range(0, len(self.tokens), _CHUNK):
            chunk = self.tokens[first : first + _CHUNK]
            if int(chunk.min()) >= 0 and int(chunk.max()) < size:
                continue
            at = int(np.flatnonzero((chunk < 0) | (chunk >= size))[0])
            document = int(np.searchsorted(self._ends, first + at, side="right"))
            message = outside(int(chunk[at]), size)
            raise DataError(f"{self._file} document {document}: {message}")


def _read_index(index: Path) -> tuple["np.dtype[Any]", Offsets]:
    """Type of the tokens, and where each document that is not empty ends."""
    # Late: it imports much of megatron-core, which other sources shall not pay for.
    from megatron.core.datasets.indexed_dataset import (  # type: ignore[import-untyped]
        IndexedDataset,
    )

    logging.getLogger("megatron.core.datasets").setLevel(logging.WARNING)
    try:
        found: Any = IndexedDataset(str(index.with_suffix("")), mmap=True)
        dtype = np.dtype(found.index.dtype)
        lengths = np.array(found.index.sequence_lengths, dtype=np.int64)
        pointers = np.array(found.index.sequence_pointers, dtype=np.int64)
        documents = np.array(found.index.document_indices, dtype=np.int64)
    except Exception as error:
        raise DataError(f"{index}: megatron-core cannot read it: {said(error)}") from error
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if dtype.kind not in "iu" or not (pointers == ends[:-1] * dtype.itemsize).all():
        raise DataError(f"{index}: its sequences are not token ids that follow each other")
    borders = np.unique(ends[documents])
    if len(borders) < 2:
        raise DataError(f"{index}: it holds no document with a token")
    return dtype, borders[1:]


def facts_of(stream: Stream) -> StreamFacts:
    """What identifies a part of a dataset; reads it once."""
    digest = hashlib.sha256()
    for first in range(0, len(stream), _CHUNK):
        digest.update(stream.tokens[first : first + _CHUNK])
    return StreamFacts(tokens=len(stream), documents=len(stream.starts), digest=digest.hexdigest())
