"""Steps from epochs, and global batches that grow."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.config.batch import BatchRamp, batch_at, steps_until


def training(**changes: Any) -> TrainingConfig:
    # steps may be there as null: so the operator writes what is not set.
    return TrainingConfig(**{"epochs": 1, "steps": None, "global_batch_size": 8, **changes})


@pytest.mark.parametrize(
    ("epochs", "sequences", "steps"),
    [(1, 16, 2), (1, 17, 3), (1, 1, 1), (3, 17, 7), (0.5, 17, 2), (0.001, 17, 1)],
)
def test_every_sequence_of_the_epochs_is_seen(epochs: float, sequences: int, steps: int) -> None:
    settled = training(epochs=epochs).settled(sequences)
    assert (settled.total_steps, settled.epochs) == (steps, None)


def test_steps_are_what_they_are() -> None:
    config = training(epochs=None, steps=3)
    assert config.settled(1000) is config


def test_warmup_that_does_not_fit_the_epochs_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"training\.warmupSteps must not exceed training\.steps"):
        training(warmup_steps=4).settled(17)


def test_a_ramp_grows_by_the_sequences_consumed_as_megatrons_does() -> None:
    """Megatron-LM's RampupBatchsizeNumMicroBatchesCalculator: start 2, increment 2, 30 samples."""
    ramp = BatchRamp(start=2, increment=2, sequences=30)
    sizes = {consumed: batch_at(8, ramp, consumed) for consumed in (0, 9, 10, 19, 20, 29, 30, 99)}
    assert sizes == {0: 2, 9: 2, 10: 4, 19: 4, 20: 6, 29: 6, 30: 8, 99: 8}


@given(
    start=st.integers(1, 9),
    increment=st.integers(1, 5),
    stages=st.integers(1, 6),
    ramped=st.integers(1, 200),
    sequences=st.integers(1, 500),
)
def test_steps_are_those_that_a_run_would_take(
    start: int, increment: int, stages: int, ramped: int, sequences: int
) -> None:
    full = start + stages * increment
    for ramp in (None, BatchRamp(start=start, increment=increment, sequences=ramped)):
        steps, consumed, size = 0, 0, 0
        while consumed < sequences:
            before, size = size, batch_at(full, ramp, consumed)
            assert before <= size <= full
            steps, consumed = steps + 1, consumed + size
        assert steps_until(full, ramp, sequences) == steps
