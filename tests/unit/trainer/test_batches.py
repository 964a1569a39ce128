"""Sequences, labels, and what each rank computes of a global batch."""

import numpy as np
import pytest
import torch

from mfsdp_trainer.config.data import Packing
from mfsdp_trainer.data.batches import MicroBatch, Parts, Share, TrainingData, held_out_batches
from mfsdp_trainer.data.order import Place, Shuffled
from mfsdp_trainer.data.stream import Stream
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.models.loss import IGNORE

LENGTH = 10


def stream(
    tokens: int = 101, *, starts: tuple[int, ...] = (0,), turns: tuple[int, ...] = ()
) -> Stream:
    return Stream(
        np.arange(tokens, dtype=np.uint16),
        np.array(starts, dtype=np.int64),
        np.array(turns, dtype=np.int64),
    )


def parts(*streams: Stream, packing: Packing = Packing.DOCUMENTS) -> Parts:
    return Parts(streams or [stream()], LENGTH, packing)


def batch(made: Parts, *numbers: int | None) -> MicroBatch:
    return made.batch([None if number is None else Place(0, number) for number in numbers])


def training(share: Share) -> TrainingData:
    return TrainingData(parts(), Shuffled([10], 7), share)


def test_labels_are_the_next_tokens_and_no_token_is_predicted_twice() -> None:
    assert parts().counts == [10]
    made = batch(parts(), *range(10))
    assert torch.equal(made.labels, made.inputs + 1)
    assert made.labels.flatten().tolist() == list(range(1, 101))
    assert made.tokens == 100


def test_a_sequence_that_does_not_count_has_no_labels() -> None:
    made = batch(parts(), 3, None)
    assert made.tokens == LENGTH
    assert bool((made.labels[1] == IGNORE).all())
    assert batch(parts(), None).tokens == 0


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_the_global_batch_is_the_same_however_it_is_shared(ranks: int, micro_batches: int) -> None:
    size = 4 // ranks // micro_batches
    whole = training(Share(0, 1, 4)).micro_batches(8, 4)[0]
    rows = [
        row
        for micro in range(micro_batches)
        for rank in range(ranks)
        for row in training(Share(rank, ranks, size)).micro_batches(8, 4)[micro].inputs.tolist()
    ]
    assert rows == whole.inputs.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_evaluates_as_many_batches_and_all_text_once(ranks: int) -> None:
    batches = [
        held_out_batches(parts(), 7, rank=rank, ranks=ranks, size=2) for rank in range(ranks)
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
    assert held_out_batches(parts(stream(5)), 7, rank=0, ranks=2, size=2) == []
    assert held_out_batches(parts(stream(0, starts=())), 7, rank=0, ranks=2, size=2) == []


def test_held_out_text_of_which_nothing_counts_is_an_error() -> None:
    with pytest.raises(
        DataError, match=r"no token of the 7 held-out sequences .* data\.validation"
    ):
        held_out_batches(parts(stream(turns=(0,))), 7, rank=0, ranks=1, size=2)


def test_positions_count_from_0_in_each_document_and_its_first_token_is_no_label() -> None:
    # Sequence 1 has inputs 10 ... 19 and labels 11 ... 20.
    made = batch(parts(stream(starts=(0, 3, 13, 14, 20, 35))), 1, 0)
    assert made.positions is not None
    assert made.positions.tolist() == [
        [0, 1, 2, 0, 0, 1, 2, 3, 4, 5],
        [0, 1, 2, 0, 1, 2, 3, 4, 5, 6],
    ]
    masked = [11, 12, IGNORE, IGNORE, 15, 16, 17, 18, 19, IGNORE]
    assert made.labels[0].tolist() == masked
    assert made.tokens == 7 + 9


def test_a_document_never_begins_where_the_one_before_would_go_on() -> None:
    """transformers tells documents apart by differences other than 1 alone."""
    random = np.random.default_rng(3)
    for _ in range(50):
        starts = (0, *np.flatnonzero(random.random(100) < random.random()) + 1)
        positions = batch(parts(stream(starts=starts)), *range(10)).positions
        assert positions is not None
        begins = torch.zeros(100, dtype=torch.bool)
        begins[[at for at in starts if at < 100]] = True
        continues = torch.diff(positions, dim=1) == 1
        assert torch.equal(continues, ~begins.view(10, 10)[:, 1:])


def test_plain_packing_predicts_across_documents() -> None:
    made = batch(parts(stream(starts=(0, 3, 13)), packing=Packing.PLAIN), 0, 1)
    assert made.positions is None
    assert made.tokens == 20


def test_what_is_not_trained_on_is_no_label_wherever_sequences_are_cut() -> None:
    random = np.random.default_rng(4)
    for _ in range(50):
        untrained = random.random(101) < random.random()
        turns = tuple(np.flatnonzero(np.diff(untrained, prepend=False)))
        labels = batch(parts(stream(turns=turns), packing=Packing.PLAIN), *range(10)).labels
        expected = np.where(untrained[1:], IGNORE, np.arange(1, 101))
        assert labels.flatten().tolist() == expected.tolist()


def test_several_parts_are_read_as_if_end_to_end() -> None:
    made = parts(stream(31), stream(5), stream(21))
    assert made.counts == [3, 0, 2]
    places = Shuffled(made.counts, 7).places(0, 5)
    assert sorted(places) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    begins = made.batch([Place(0, 2), Place(2, 1)]).inputs[:, 0].tolist()
    assert begins == [20, 10]
