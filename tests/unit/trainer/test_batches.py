"""Sequences, labels, and what each rank computes of a global batch."""

import numpy as np
import pytest
import torch

from mfsdp_trainer.data.batches import (
    Sequences,
    Share,
    TrainingData,
    held_out_batches,
)
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.models.loss import IGNORE

TOKENS = np.arange(101, dtype=np.uint16)
LENGTH = 10


def test_labels_are_the_next_tokens_and_no_token_is_predicted_twice() -> None:
    sequences = Sequences(TOKENS, LENGTH)
    assert len(sequences) == 10
    batch = sequences.batch(list(range(10)))
    assert torch.equal(batch.labels, batch.inputs + 1)
    assert batch.labels.flatten().tolist() == list(range(1, 101))
    assert batch.tokens == 100


def test_a_sequence_that_does_not_count_has_no_labels() -> None:
    batch = Sequences(TOKENS, LENGTH).batch([3, -1])
    assert batch.tokens == LENGTH
    assert bool((batch.labels[1] == IGNORE).all())


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_the_global_batch_is_the_same_however_it_is_shared(ranks: int, micro_batches: int) -> None:
    size = 4 // ranks // micro_batches
    whole = TrainingData(TOKENS, LENGTH, 7, Share(0, 1, 4)).micro_batches(8, 4)[0]
    rows = [
        row
        for micro in range(micro_batches)
        for rank in range(ranks)
        for row in TrainingData(TOKENS, LENGTH, 7, Share(rank, ranks, size))
        .micro_batches(8, 4)[micro]
        .inputs.tolist()
    ]
    assert rows == whole.inputs.tolist()


def test_too_little_text_says_how_little() -> None:
    with pytest.raises(DataError, match=r"hold 10 training tokens.*sequenceLength 10 \+ 1"):
        TrainingData(TOKENS[:10], LENGTH, 7, Share(0, 1, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_evaluates_as_many_batches_and_all_text_once(ranks: int) -> None:
    batches = [
        held_out_batches(TOKENS, LENGTH, 7, rank=rank, ranks=ranks, size=2) for rank in range(ranks)
    ]
    assert len({len(mine) for mine in batches}) == 1
    counted = [
        row[0]
        for mine in batches
        for batch in mine
        for row, labels in zip(batch.inputs.tolist(), batch.labels.tolist(), strict=True)
        if labels[0] != IGNORE
    ]
    assert sorted(counted) == [number * 10 // 7 * LENGTH for number in range(7)]


def test_no_evaluation_without_text() -> None:
    assert held_out_batches(TOKENS[:5], LENGTH, 7, rank=0, ranks=2, size=2) == []
