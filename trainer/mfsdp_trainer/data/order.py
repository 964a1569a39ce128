"""The order of the training sequences: a pure function of seed and position.

Position k of a run is sequence `permuted(k)`: each epoch is a permutation of its own, made by a
Feistel network, so that nothing is stored, any position is reached at once, and the order knows
neither rank nor world size.
"""

from typing import Final

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


def _permuted(values: _Words, count: int, seed: int, epoch: int) -> _Words:
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    root = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    keys = list(root)
    values = _feistel(values, half, keys)
    # Numbers that fall outside go round again until they fall inside: still a permutation.
    while (outside := values >= np.uint64(count)).any():
        values = np.where(outside, _feistel(values, half, keys), values)
    return values


def sequence_numbers(first: int, amount: int, *, count: int, seed: int) -> list[int]:
    """Which of `count` sequences stand at positions `first`, `first` + 1, ... of the run."""
    numbers: list[int] = []
    while len(numbers) < amount:
        epoch, place = divmod(first + len(numbers), count)
        until = min(count, place + amount - len(numbers))
        permuted = _permuted(np.arange(place, until, dtype=np.uint64), count, seed, epoch)
        numbers += [int(number) for number in permuted]
    return numbers
