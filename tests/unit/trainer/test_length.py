"""Steps from epochs, and global batches that grow."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig, TrainingConfig
from mfsdp_trainer.config.batch import BatchRamp, batch_at, steps_until
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.run import _settled, _warn_of_short_ramp, start_of


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
    given = training(epochs=None, steps=3)
    assert given.settled(1000) is given


def config(**changes: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "useTorchFSDP2": True,
            "model": {"config": {"model_type": "llama"}},
            "data": {"sources": [{"builtin": "python-stdlib"}]},
            "training": {"epochs": 1, "globalBatchSize": 8},
            **changes,
        }
    )


def begun_at(step: int, consumed: int, epochs: float | None = 1.0) -> Position:
    """Where a run of 5 steps of 8 begins with such a checkpoint."""
    loop: Any = SimpleNamespace(
        config=config(training={"steps": 5, "globalBatchSize": 8}),
        checkpoints=SimpleNamespace(resume=lambda _: Position(step=step, consumed=consumed)),
        engine=None,
        reporter=SimpleNamespace(progress=lambda **_: None),
        world=SimpleNamespace(is_first=False),
    )
    return start_of(loop, epochs)


def test_epochs_go_on_with_the_same_global_batches_only() -> None:
    assert begun_at(3, 24).consumed == 24
    for step, consumed in ((3, 36), (3, 23), (3, 12)):
        with pytest.raises(
            ConfigError, match=r"training\.epochs: checkpoint\.path .* other global"
        ):
            begun_at(step, consumed)
        assert begun_at(step, consumed, epochs=None).step == step


def test_a_longer_run_is_refused_by_the_field_that_was_set() -> None:
    with pytest.raises(
        ConfigError, match=r"training\.epochs is 1, which are 5 steps.*raise epochs"
    ):
        begun_at(6, 48)
    with pytest.raises(ConfigError, match=r"training\.steps is 5, but .*: raise steps"):
        begun_at(6, 48, epochs=None)


def test_a_trace_behind_the_last_step_of_the_epochs_is_refused() -> None:
    world: Any = SimpleNamespace(is_first=False)
    fits = config(logging={"profile": {"startStep": 1, "steps": 2}})
    assert _settled(fits, world, 16).training.steps == 2
    with pytest.raises(
        ConfigError, match=r"logging\.profile ends with step 3, but training\.epochs 1"
    ):
        _settled(config(logging={"profile": {"startStep": 2, "steps": 2}}), world, 16)


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


@pytest.mark.parametrize(("steps", "told"), [(7, True), (8, True), (9, False)])
def test_a_batch_that_never_grows_to_its_size_is_told(
    steps: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ramp = {"start": 2, "increment": 2, "sequences": 24}
    # 2, 2, 2, 2, 4, 4, 6, 6: the ninth step is the first of 8.
    length = {"steps": steps, "epochs": None, "globalBatchSize": 8, "batchRamp": ramp}
    chosen = config(training={"learningRate": 0.1, **length})
    _warn_of_short_ramp(chosen, SimpleNamespace(is_first=True))  # type: ignore[arg-type]
    assert ("batchRamp grows to globalBatchSize after step" in caplog.text) == told
