"""The order of the training sequences: a pure function of seed and position.

Position k of a run is sequence `permuted(k)`: each epoch is a permutation of its own, made by a
Feistel network, so that nothing is stored, any position is reached at once, and the order knows
neither rank nor world size.

A blend is a pattern of parts that repeats: position k is drawn from part `pattern[k % period]`,
and how often that part was drawn before follows from k alone. Each part goes through epochs of its
own.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_ROUNDS: Final = 4
_Words = NDArray[np.uint64]


def _mix(values: _Words) -> _Words:
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _feistel(values: _Words, half: int, keys: list[np.uint64]) -> _Words:
    """A permutation of the numbers of 2 x `half` bits."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << bits) | right


def _permuted(values: _Words, count: int, *seed: int) -> _Words:
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    root = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)
    keys = list(root)
    values = _feistel(values, half, keys)
    # Numbers that fall outside go round again until they fall inside: still a permutation.
    while (outside := values >= np.uint64(count)).any():
        values = np.where(outside, _feistel(values, half, keys), values)
    return values


def sequence_numbers(first: int, amount: int, *, count: int, seed: int, part: int = 0) -> list[int]:
    """Which of `count` sequences stand at positions `first`, `first` + 1, ... of the run.

    `part` above 0 has an order of its own.
    """
    numbers: list[int] = []
    while len(numbers) < amount:
        epoch, place = divmod(first + len(numbers), count)
        until = min(count, place + amount - len(numbers))
        seeds = (seed, epoch, part) if part else (seed, epoch)
        permuted = _permuted(np.arange(place, until, dtype=np.uint64), count, *seeds)
        numbers += [int(number) for number in permuted]
    return numbers


class Place(NamedTuple):
    """A sequence among several parts."""

    part: int
    number: int


class Order(Protocol):
    """Which sequence stands where in a run."""

    def __len__(self) -> int:
        """Sequences of one epoch."""

    def places(self, first: int, amount: int) -> list[Place]:
        """The sequences at positions `first`, `first` + 1, ..."""


class Shuffled:
    """All parts as one: an epoch has each sequence of each of them once."""

    def __init__(self, counts: Sequence[int], seed: int) -> None:
        """`counts`: sequences of each part; there is at least one."""
        self._ends = list(accumulate(counts))
        self._seed = seed

    def __len__(self) -> int:
        return self._ends[-1]

    def places(self, first: int, amount: int) -> list[Place]:
        """See `Order`."""
        numbers = sequence_numbers(first, amount, count=len(self), seed=self._seed)
        return [_place(number, self._ends) for number in numbers]


def _place(number: int, ends: Sequence[int]) -> Place:
    part = int(np.searchsorted(ends, number, side="right"))
    return Place(part, number - (ends[part - 1] if part else 0))


class Blend:
    """Parts by weight: of any first n sequences of a run each part has its share, within one.

    An epoch is as many sequences as all parts have together; a part that runs out begins again, in
    another order.
    """

    def __init__(self, counts: Sequence[int], weights: Sequence[int], seed: int) -> None:
        """`counts`: sequences of each part, at least one each. `weights`: from 1."""
        self._counts = counts
        self._seed = seed
        self._pattern = np.asarray(pattern(weights))
        self._weights = np.bincount(self._pattern, minlength=len(counts))
        drawn = self._pattern[:, None] == np.arange(len(counts))
        self._before = np.cumsum(drawn, axis=0) - drawn
        """How often each part was drawn before each place of the pattern; [period, parts]."""

    def __len__(self) -> int:
        return sum(self._counts)

    def places(self, first: int, amount: int) -> list[Place]:
        """See `Order`."""
        rounds, offsets = np.divmod(np.arange(first, first + amount), len(self._pattern))
        parts = self._pattern[offsets]
        numbers = np.empty(amount, dtype=np.int64)
        for part in np.unique(parts):
            mine = np.flatnonzero(parts == part)
            begin = rounds[mine[0]] * self._weights[part] + self._before[offsets[mine[0]], part]
            numbers[mine] = sequence_numbers(
                int(begin), len(mine), count=self._counts[part], seed=self._seed, part=int(part) + 1
            )
        return [Place(int(part), int(number)) for part, number in zip(parts, numbers, strict=True)]


def pattern(weights: Sequence[int]) -> list[int]:
    """The shortest list in which each part stands as often as its weight says, spread evenly.

    Part i may be drawn the j-th time (from 0) at places floor(j / share) to ceil((j + 1) / share)
    - 1; of those that may, the one that has to be drawn first is. With one draw a place that never
    comes too late (Baruah and others, 1996, on proportionate progress), and so any first n places
    hold n x share of each part, within one.
    """
    divisor = gcd(*weights)
    parts = [weight // divisor for weight in weights]
    period, drawn, places = sum(parts), [0] * len(parts), []
    for place in range(period):
        open_parts = [
            (-(-(drawn[part] + 1) * period // weight), part)
            for part, weight in enumerate(parts)
            if drawn[part] * period // weight <= place
        ]
        _, chosen = min(open_parts)
        drawn[chosen] += 1
        places.append(chosen)
    return places


def spread(counts: Sequence[int], amount: int) -> list[Place]:
    """Up to `amount` sequences, evenly over all parts."""
    ends = list(accumulate(counts))
    total = ends[-1] if ends else 0
    amount = min(amount, total)
    return [_place(index * total // amount, ends) for index in range(amount)]
