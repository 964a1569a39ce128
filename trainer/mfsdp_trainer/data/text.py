"""Text files as documents, a piece at a time: a file may be larger than memory."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mfsdp_trainer.errors import DataError

from .documents import HeldOut, Piece

_PIECE: Final = 1 << 20
"""Characters that are in memory at a time; their tokens are some hundred bytes each meanwhile."""
_LINE_END: Final = re.compile(r"(?<=\S)\n(?=\S)")


def text_document(file: Path, held_out: HeldOut, *, source_code: bool) -> Iterator[Piece]:
    """The document that a file is. Raises DataError if it is not text.

    `source_code`: Python's own, in the encoding that it declares.
    """
    pieces = _pieces(file, source_code=source_code)
    first = next(pieces, "")
    rest = next(pieces, None)
    if rest is None:
        if first:
            yield Piece(str(file), first, held_out(_bytes(first)))
        return
    # Read twice: which side the document is on depends on all of it.
    whole = () if held_out.decided else map(_bytes, _pieces(file, source_code=source_code))
    side = held_out(*whole)
    yield Piece(str(file), first, side, ends=False)
    for following in pieces:
        yield Piece(str(file), rest, side, ends=False)
        rest = following
    yield Piece(str(file), rest, side)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def _pieces(file: Path, *, source_code: bool) -> Iterator[str]:
    """The text in pieces that end with a line where they can: tokenizers that split at white space
    then make the same tokens of them as of the whole."""
    try:
        with tokenize.open(file) if source_code else file.open(encoding="utf-8") as stream:
            held = ""
            while more := stream.read(_PIECE):
                held += more
                if len(held) > _PIECE:
                    cut = _cut(held)
                    yield held[:cut]
                    held = held[cut:]
            if held:
                yield held
    except (UnicodeDecodeError, SyntaxError) as error:
        raise DataError(
            f"{file}: not UTF-8 text ({error}): convert it, or leave it out of data.sources"
        ) from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def _cut(text: str) -> int:
    """Where to cut: after the last line end between text, or anywhere if there is none."""
    ends = [found.end() for found in _LINE_END.finditer(text, len(text) - (_PIECE >> 3))]
    return ends[-1] if ends else len(text)
