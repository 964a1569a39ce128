"""From documents to tokens, in batches that keep all cores busy: tokenizers work on a batch in
threads of their own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .bad import BadRecordError, BadRecords
from .chat import ChatTemplate
from .documents import Piece, TokenRow
from .tokenizer import Tokenizer

_PIECES: Final = 256
_CHARACTERS: Final = 1 << 20
"""A batch ends with whichever is reached first."""


@dataclass(frozen=True)
class Encoded:
    """A piece of a document in tokens."""

    ids: NDArray[np.integer[Any]]
    trained: NDArray[np.bool_] | None
    """Which are trained on; None: all."""
    held_out: bool
    ends: bool


class Encoder:
    """Turns pieces into tokens with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, bad: BadRecords) -> None:
        self._tokenizer = tokenizer
        self._bad = bad

    @cached_property
    def _chat(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer.transformers)

    def encode(self, pieces: Iterable[Piece]) -> Iterator[Encoded]:
        """The same pieces in the same order, without those that cannot be used.

        Raises ConfigError for conversations without a chat template, DataError past the limit of
        bad records.
        """
        for batch in _batches(pieces):
            for kind, run in groupby(batch, key=lambda piece: type(piece.content)):
                same = list(run)
                if kind is str:
                    yield from self._texts(same)
                elif kind is TokenRow:
                    yield from self._rows(same)
                else:
                    yield from self._conversations(same)

    def _texts(self, pieces: list[Piece]) -> Iterator[Encoded]:
        texts = [piece.content for piece in pieces if isinstance(piece.content, str)]
        for piece, ids in zip(pieces, self._tokenizer.encode(texts), strict=True):
            # The end token is the document's, not the piece's.
            yield Encoded(ids if piece.ends else ids[:-1], None, piece.held_out, piece.ends)

    def _conversations(self, pieces: list[Piece]) -> Iterator[Encoded]:
        rendered, kept = [], []
        for piece in pieces:
            try:
                rendered.append(self._chat.render(piece.content))  # type: ignore[arg-type]
            except BadRecordError as error:
                self._bad.add(piece.where, error)
            else:
                kept.append(piece)
        if kept:
            for piece, (ids, trained) in zip(kept, self._chat.tokens(rendered), strict=True):
                yield Encoded(ids, trained, piece.held_out, piece.ends)

    def _rows(self, pieces: list[Piece]) -> Iterator[Encoded]:
        size = self._tokenizer.vocabulary.size
        for piece in pieces:
            row = piece.content
            assert isinstance(row, TokenRow)
            least, most = int(row.ids.min()), int(row.ids.max())
            if least < 0 or most >= size:
                wrong = least if least < 0 else most
                self._bad.add(piece.where, outside(wrong, size))
                continue
            yield Encoded(row.ids, row.trained, piece.held_out, piece.ends)


def outside(token: int, size: int) -> str:
    """What is said of a token that the vocabulary does not have."""
    return (
        f"token {token} is not one of the tokenizer's {size}: set data.tokenizer to the one that "
        "these tokens were made with"
    )


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.content) if isinstance(piece.content, str) else 0
        if len(batch) == _PIECES or characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
