"""The data's order: a permutation an epoch, from seed and position alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsdp_trainer.data.order import Blend, pattern, sequence_numbers


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


WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@settings(deadline=None)
@given(weights=WEIGHTS)
def test_any_first_part_of_a_blend_has_its_shares_within_one(weights: list[int]) -> None:
    places, total = pattern(weights), sum(weights)
    assert total % len(places) == 0
    drawn = [0] * len(weights)
    for number, part in enumerate(places, start=1):
        drawn[part] += 1
        for count, weight in zip(drawn, weights, strict=True):
            assert abs(count - number * weight / total) < 1
    assert [count * total for count in drawn] == [weight * len(places) for weight in weights]


@settings(deadline=None)
@given(
    weights=WEIGHTS,
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(0, 500),
    amount=st.integers(1, 100),
    data=st.data(),
)
def test_any_part_of_a_blend_is_a_part_of_the_whole(
    weights: list[int], seed: int, first: int, amount: int, data: st.DataObject
) -> None:
    several = st.lists(st.integers(1, 50), min_size=len(weights), max_size=len(weights))
    blend = Blend(data.draw(several), weights, seed)
    whole = blend.places(0, first + amount)
    assert blend.places(first, amount) == whole[first:]


def test_each_part_of_a_blend_goes_through_epochs_of_its_own() -> None:
    blend = Blend([10, 1000], [1, 1], 7)
    drawn = [place.number for place in blend.places(0, 80) if place.part == 0]
    epochs = [drawn[begin : begin + 10] for begin in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len(blend) == 1010
    far = blend.places(10**12, 2)
    assert {place.part for place in far} == {0, 1}


def test_parts_of_equal_length_have_orders_of_their_own() -> None:
    drawn = Blend([100, 100], [1, 1], 7).places(0, 200)
    first, second = ([p.number for p in drawn if p.part == part] for part in (0, 1))
    assert first != second
