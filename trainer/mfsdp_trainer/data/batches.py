"""From tokens to batches: fixed-length sequences, and which rank computes which of them.

Documents are packed end to end and cut into sequences of equal length. With packing `documents`
positions count from 0 in each document of a sequence, which is what keeps attention inside it
(`models/head.py` says how), and no document's first token is predicted from the document before.
With packing `plain` there are no positions: attention sees across the documents of a sequence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mfsdp_trainer.config.data import Packing
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.models.loss import IGNORE

from .order import Order, Place, spread
from .stream import Stream


@dataclass(frozen=True)
class MicroBatch:
    """What a rank computes at a time: int64 tensors [sequences, positions].

    `labels[i, t]` is the token after `inputs[i, t]`, or IGNORE.
    """

    inputs: Tensor
    labels: Tensor
    positions: Tensor | None = None
    """Place of each token in its document, from 0; None where attention crosses documents."""

    @property
    def tokens(self) -> int:
        """Positions that are trained on."""
        return int((self.labels != IGNORE).sum())

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device."""
        return MicroBatch(
            self.inputs.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            None if self.positions is None else self.positions.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class Row:
    """One sequence: `inputs`, `labels` and `positions` of a micro-batch, int64 [length]."""

    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    positions: NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """A stream as sequences: number i predicts tokens i x length + 1 ... (i + 1) x length."""

    stream: Stream
    length: int
    packing: Packing = Packing.DOCUMENTS

    def __len__(self) -> int:
        return max(0, (len(self.stream) - 1) // self.length)

    def row(self, number: int) -> Row:
        """The sequence of that number."""
        begin, after = number * self.length, (number + 1) * self.length + 1
        tokens = self.stream.tokens[begin:after].astype(np.int64)
        labels, positions = tokens[1:].copy(), np.arange(self.length)
        labels[self.stream.untrained(begin + 1, after)] = IGNORE
        if self.packing is Packing.DOCUMENTS:
            firsts = self.stream.starts_within(begin + 1, after)
            labels[firsts] = IGNORE
            # A label's place is that of the input before it; the last label is no input here.
            begins = np.zeros_like(positions)
            begins[firsts[firsts < self.length - 1] + 1] = firsts[firsts < self.length - 1] + 1
            positions -= np.maximum.accumulate(begins)
        return Row(tokens[:-1], labels, positions)


class Parts:
    """What a run reads, as sequences of one length and packing: one part or several."""

    def __init__(self, streams: Sequence[Stream], length: int, packing: Packing) -> None:
        self._parts = [Sequences(stream, length, packing) for stream in streams]
        self._packed = packing is Packing.DOCUMENTS
        self.length = length
        self.counts = [len(part) for part in self._parts]
        """Sequences of each part."""

    @property
    def tokens(self) -> int:
        """Tokens of all parts."""
        return sum(len(part.stream) for part in self._parts)

    def batch(self, places: Sequence[Place | None]) -> MicroBatch:
        """The sequences at those places; None stands for one that is not trained on."""
        some = next(place for place in (*places, Place(0, 0)) if place is not None)
        rows = [self._row(place or some) for place in places]
        labels = np.stack([row.labels for row in rows])
        labels[[place is None for place in places]] = IGNORE
        positions = np.stack([row.positions for row in rows]) if self._packed else None
        return MicroBatch(
            torch.from_numpy(np.stack([row.inputs for row in rows])),
            torch.from_numpy(labels),
            None if positions is None else torch.from_numpy(positions),
        )

    def _row(self, place: Place) -> Row:
        return self._parts[place.part].row(place.number)


@dataclass(frozen=True)
class Share:
    """How a global batch falls apart: micro-batches x `ranks` x `micro_batch_size`."""

    rank: int
    ranks: int
    micro_batch_size: int

    def of[T](self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """This rank's micro-batches of a global batch: a multiple of what all ranks compute at a
        time."""
        first = self.rank * self.micro_batch_size
        for start in range(first, len(items), self.ranks * self.micro_batch_size):
            yield items[start : start + self.micro_batch_size]


class TrainingData:
    """The global batches of a run, and this rank's part of each."""

    def __init__(self, parts: Parts, order: Order, share: Share) -> None:
        self._parts = parts
        self._order = order
        self._share = share

    def __len__(self) -> int:
        """Sequences of one epoch."""
        return len(self._order)

    def micro_batches(self, consumed: int, amount: int) -> list[MicroBatch]:
        """This rank's micro-batches of the step of `amount` sequences after `consumed` ones, both
        over all ranks."""
        places = self._order.places(consumed, amount)
        return [self._parts.batch(mine) for mine in self._share.of(places)]


def held_out_batches(
    parts: Parts, amount: int, *, rank: int, ranks: int, size: int
) -> list[MicroBatch]:
    """This rank's share of an evaluation: up to `amount` sequences spread over the held-out text.

    Every rank gets the same number of batches, filled up with sequences that do not count: with
    sharded parameters a forward pass is a collective. Empty without a whole sequence of text.
    Raises DataError if there is text and none of it is trained on.
    """
    places: list[Place | None] = [*spread(parts.counts, amount)]
    if places and not parts.batch(places).tokens:
        raise DataError(
            f"no token of the {len(places)} held-out sequences is one that is trained on: "
            "give data.validation other sources, or raise training.evalSequences"
        )
    places += [None] * (-len(places) % (ranks * size))
    share = Share(rank, ranks, size)
    return [parts.batch(mine) for mine in share.of(places)]
