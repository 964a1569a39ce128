"""From tokens to batches: fixed-length sequences, and which rank computes which of them.

Documents are packed end to end, each followed by the end token, and cut into sequences of equal
length. Attention sees across the documents of one sequence: this is plain packing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mfsdp_trainer.errors import DataError
from mfsdp_trainer.models.loss import IGNORE

from .order import sequence_numbers

Tokens = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class MicroBatch:
    """What a rank computes at a time: `inputs` and `labels`, both int64 [sequences, positions].

    `labels[i, t]` is the token after `inputs[i, t]`, or IGNORE.
    """

    inputs: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        """Positions that are trained on."""
        return int((self.labels != IGNORE).sum())

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device."""
        return MicroBatch(
            self.inputs.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        )


class Sequences:
    """A token file as sequences: number i predicts tokens i x length + 1 ... (i + 1) x length."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def batch(self, numbers: list[int]) -> MicroBatch:
        """The sequences of those numbers; -1 stands for one that is not trained on."""
        width = self._length + 1
        starts = [max(number, 0) * self._length for number in numbers]
        rows = np.stack([self._tokens[start : start + width] for start in starts]).astype(np.int64)
        whole = torch.from_numpy(rows)
        labels = whole[:, 1:].clone()
        labels[[index for index, number in enumerate(numbers) if number < 0]] = IGNORE
        return MicroBatch(whole[:, :-1].contiguous(), labels)


@dataclass(frozen=True)
class Share:
    """How a global batch falls apart: micro-batches x `ranks` x `micro_batch_size`."""

    rank: int
    ranks: int
    micro_batch_size: int

    def of(self, numbers: list[int]) -> Iterator[list[int]]:
        """This rank's micro-batches of a global batch: a multiple of what all ranks compute at a
        time."""
        first = self.rank * self.micro_batch_size
        for start in range(first, len(numbers), self.ranks * self.micro_batch_size):
            yield numbers[start : start + self.micro_batch_size]


class TrainingData:
    """The global batches of a run, and this rank's part of each."""

    def __init__(self, tokens: Tokens, length: int, seed: int, share: Share) -> None:
        """Raises DataError if the text does not fill one sequence."""
        self._sequences = Sequences(tokens, length)
        self._seed = seed
        self._share = share
        if not len(self._sequences):
            raise DataError(
                f"data.sources hold {len(tokens)} training tokens, fewer than one sequence of "
                f"data.sequenceLength {length} + 1: add text or shorten the sequence"
            )

    def __len__(self) -> int:
        """Sequences of one epoch."""
        return len(self._sequences)

    def micro_batches(self, consumed: int, amount: int) -> list[MicroBatch]:
        """This rank's micro-batches of the step of `amount` sequences after `consumed` ones, both
        over all ranks."""
        numbers = sequence_numbers(consumed, amount, count=len(self), seed=self._seed)
        return [self._sequences.batch(mine) for mine in self._share.of(numbers)]


def held_out_batches(
    tokens: Tokens, length: int, amount: int, *, rank: int, ranks: int, size: int
) -> list[MicroBatch]:
    """This rank's share of an evaluation: up to `amount` sequences spread over the held-out text.

    Every rank gets the same number of batches, filled up with sequences that do not count: with
    sharded parameters a forward pass is a collective. Empty without a whole sequence of text.
    """
    sequences = Sequences(tokens, length)
    amount = min(amount, len(sequences))
    numbers = [index * len(sequences) // amount for index in range(amount)]
    numbers += [-1] * (-amount % (ranks * size))
    share = Share(rank, ranks, size)
    return [sequences.batch(mine) for mine in share.of(numbers)]
