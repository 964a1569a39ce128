"""Tokens end to end, with where documents begin in them: what sequences are cut from."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

type Tokens = NDArray[np.integer[Any]]
type Offsets = NDArray[np.int64]


def _none() -> Offsets:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Stream:
    """Documents one after the other; the arrays may be memory-mapped."""

    tokens: Tokens
    starts: Offsets
    """Where each document begins, ascending; the first is 0. No document is empty."""
    turns: Offsets = field(default_factory=_none)
    """Where what is trained on ends, begins again, ends ... ascending. Empty: all is."""

    def __len__(self) -> int:
        return len(self.tokens)

    def starts_within(self, begin: int, end: int) -> Offsets:
        """Where documents begin in tokens `begin` to `end` - 1, counted from `begin`."""
        first, last = np.searchsorted(self.starts, [begin, end])
        return self.starts[first:last] - begin

    def untrained(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Which of the tokens `begin` to `end` - 1 are not trained on."""
        first, last = np.searchsorted(self.turns, [begin, end], side="left")
        changes = np.zeros(end - begin, dtype=np.int64)
        changes[self.turns[first:last] - begin] = 1
        # After an odd number of turns nothing is trained on.
        untrained: NDArray[np.bool_] = (first + np.cumsum(changes)) % 2 == 1
        return untrained
