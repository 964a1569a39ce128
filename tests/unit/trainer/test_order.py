"""The data's order: a permutation an epoch, from seed and position alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsdp_trainer.data.order import sequence_numbers


@settings(deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1))
def test_each_epoch_has_each_sequence_once(count: int, seed: int) -> None:
    for epoch in range(2):
        numbers = sequence_numbers(epoch * count, count, count=count, seed=seed)
        assert sorted(numbers) == list(range(count))


@settings(deadline=None)
@given(
    count=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 300),
    amount=st.integers(1, 100),
)
def test_any_part_is_a_part_of_the_whole(count: int, seed: int, first: int, amount: int) -> None:
    whole = sequence_numbers(0, first + amount, count=count, seed=seed)
    assert sequence_numbers(first, amount, count=count, seed=seed) == whole[first:]


@pytest.mark.parametrize("count", [100, 1000, 4096])
def test_looks_random(count: int) -> None:
    first = sequence_numbers(0, count, count=count, seed=1)
    second = sequence_numbers(count, count, count=count, seed=1)
    other_seed = sequence_numbers(0, count, count=count, seed=2)
    assert len({tuple(first), tuple(second), tuple(other_seed), tuple(range(count))}) == 4
    # A random permutation keeps about one number in place, and moves the others by a third.
    assert sum(number == place for place, number in enumerate(first)) < 10
    moved = sum(abs(number - place) for place, number in enumerate(first)) / count
    assert moved == pytest.approx(count / 3, rel=0.15)
