"""What readers hand over: documents whole, or piece by piece where one is long."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

type Messages = list[dict[str, Any]]
"""A conversation, as chat templates take it: each message has a role and mostly a content."""


@dataclass(frozen=True)
class TokenRow:
    """A document that is tokenised already."""

    ids: NDArray[np.int64]
    trained: NDArray[np.bool_] | None
    """Which tokens are trained on; None: all."""


type Content = str | Messages | TokenRow


@dataclass(frozen=True)
class Piece:
    """A document, or a part of one; the parts of one follow each other."""

    where: str
    """File and line, or record."""
    content: Content
    held_out: bool
    """Whether it is for evaluation."""
    ends: bool = True
    """Whether the document ends with it."""


class HeldOut:
    """Which documents are for evaluation: by content, so that copies fall on one side."""

    def __init__(self, fraction: float) -> None:
        """`fraction` of all documents; 0: none, 1: all."""
        self._below = fraction * 2**64
        self.decided = fraction in (0, 1)
        """Whether the content makes no difference."""

    def __call__(self, *parts: bytes) -> bool:
        """Whether the document is, given its content in any number of parts."""
        if self.decided:
            return self._below > 0
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            digest.update(part)
        return int.from_bytes(digest.digest()) < self._below


def content_bytes(content: Content) -> bytes:
    """A document's content for its hash."""
    if isinstance(content, str):
        return content.encode("utf-8", errors="surrogatepass")
    if isinstance(content, TokenRow):
        return content.ids.astype("<u4").tobytes()
    return json.dumps(content, sort_keys=True, default=str).encode()
