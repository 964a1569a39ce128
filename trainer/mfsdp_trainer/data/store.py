"""A stream of tokens on disk, written once from end to end, read memory-mapped by every rank.

NAME.bin    the tokens
NAME.docs   int64: where documents begin
NAME.turns  int64: where what is trained on ends, begins again, ends ...; empty if all is
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mfsdp_trainer.config import ConfigModel
from mfsdp_trainer.errors import DataError

from .stream import Stream

_OFFSET = np.dtype(np.int64)


class StreamFacts(ConfigModel):
    """What there must be of a stream, and what is in it."""

    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    turns: int = Field(default=0, ge=0)
    trained: int | None = Field(default=None, ge=0)
    """Tokens that are trained on; None where nobody counted: in older files all may be."""
    digest: str
    """SHA-256 over the tokens, and over the turns if there are any."""


@dataclass
class StreamWriter:
    """Writes one stream: documents in any number of pieces."""

    directory: Path
    name: str
    dtype: "np.dtype[np.unsignedinteger[Any]]"
    _tokens: int = 0
    _documents: int = 0
    _turns: int = 0
    _trained: int = 0
    _inside: bool = False
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    _turns_digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def __enter__(self) -> Self:
        self._bin = (self.directory / f"{self.name}.bin").open("wb")
        self._docs = (self.directory / f"{self.name}.docs").open("wb")
        self._turn = (self.directory / f"{self.name}.turns").open("wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bin.close()
        self._docs.close()
        self._turn.close()

    def write(
        self,
        ids: NDArray[np.integer[Any]],
        trained: NDArray[np.bool_] | None = None,
        *,
        ends: bool = True,
    ) -> None:
        """Go on with the document at hand, or begin one; `ends`: the next call begins another.

        `trained`: which of the tokens are trained on; None: all.
        """
        if len(ids):
            if not self._inside:
                self._docs.write(np.array(self._tokens, _OFFSET).tobytes())
                self._documents += 1
            self._mark(trained)
            self._trained += len(ids) if trained is None else int(np.count_nonzero(trained))
            raw = ids.astype(self.dtype).tobytes()
            self._bin.write(raw)
            self._digest.update(raw)
            self._tokens += len(ids)
            self._inside = True
        self._inside = self._inside and not ends

    def _mark(self, trained: NDArray[np.bool_] | None) -> None:
        """Write down where the tokens turn from trained on to not, or back."""
        before = self._turns % 2 == 0
        if trained is None:
            trained = np.array([True])
        turns = self._tokens + np.flatnonzero(np.diff(trained, prepend=before))
        if len(turns):
            raw = turns.astype(_OFFSET).tobytes()
            self._turn.write(raw)
            self._turns_digest.update(raw)
            self._turns += len(turns)

    def facts(self) -> StreamFacts:
        """What has been written."""
        digest = self._digest
        if self._turns:
            digest = hashlib.sha256(digest.digest() + self._turns_digest.digest())
        return StreamFacts(
            tokens=self._tokens,
            documents=self._documents,
            turns=self._turns,
            trained=self._trained,
            digest=digest.hexdigest(),
        )


def open_stream(
    directory: Path, name: str, dtype: "np.dtype[np.unsignedinteger[Any]]", facts: StreamFacts
) -> Stream:
    """A stream that was written, memory-mapped. Raises DataError if this node does not see it."""
    return Stream(
        tokens=_map(directory / f"{name}.bin", dtype, facts.tokens),
        starts=_map(directory / f"{name}.docs", _OFFSET, facts.documents),
        turns=_map(directory / f"{name}.turns", _OFFSET, facts.turns),
    )


def _map(file: Path, dtype: "np.dtype[Any]", length: int) -> NDArray[Any]:
    if not length:
        return np.empty(0, dtype=dtype)
    if not file.is_file() or file.stat().st_size != length * dtype.itemsize:
        raise DataError(
            f"{file}: missing or incomplete on this node: checkpoint.path must be one "
            "directory that all nodes share (a ReadWriteMany volume)"
        )
    return np.memmap(file, dtype=dtype, mode="r", shape=(length,))
