"""Warmup, peak and decay of the learning rate, at the ends and the joints."""

import math
from typing import Any

import pytest

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.optim import learning_rate

FALLING = [
    {"schedule": "cosine"},
    {"schedule": "linear"},
    {"schedule": "wsd", "decay_steps": 6},
    {"schedule": "wsd", "decay_steps": 6, "decay_form": "cosine"},
    {"schedule": "wsd", "decay_fraction": 0.6, "decay_form": "sqrt"},
]


def training(**changes: Any) -> TrainingConfig:
    values = {"steps": 10, "global_batch_size": 1, "learning_rate": 1.0, "warmup_steps": 4}
    return TrainingConfig(**{**values, **changes})


def rates(config: TrainingConfig, steps: range) -> list[float]:
    return [learning_rate(config, step) for step in steps]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse_sqrt", "wsd", "constant"])
def test_warmup_is_linear_and_reaches_the_peak_with_its_last_step(schedule: str) -> None:
    config = training(schedule=schedule)
    assert rates(config, range(4)) == [0.25, 0.5, 0.75, 1.0]
    fraction = training(schedule=schedule, warmup_steps=0, warmup_fraction=0.4)
    assert rates(fraction, range(10)) == rates(config, range(10))


@pytest.mark.parametrize("shape", FALLING, ids=str)
def test_ends_at_the_minimum_with_the_last_step_and_stays_there(shape: dict[str, Any]) -> None:
    config = training(min_learning_rate=0.1, **shape)
    found = rates(config, range(4, 12))
    assert found == sorted(found, reverse=True)
    assert found[-4] > 0.1
    assert found[-3:] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(
    ("schedule", "height"),
    [
        ("cosine", lambda done: (1 + math.cos(math.pi * done)) / 2),
        ("linear", lambda done: 1 - done),
    ],
)
def test_cosine_and_linear_fall_from_the_first_step_after_warmup(
    schedule: str, height: Any
) -> None:
    config = training(schedule=schedule, min_learning_rate=0.1)
    assert rates(config, range(4, 10)) == pytest.approx(
        [0.1 + 0.9 * height(step / 5) for step in range(6)]
    )


def test_inverse_square_root_goes_on_from_the_peak_and_not_below_the_minimum() -> None:
    config = training(schedule="inverse_sqrt", min_learning_rate=0.3)
    assert rates(config, range(3, 7)) == pytest.approx([math.sqrt(4 / n) for n in range(4, 8)])
    assert learning_rate(config, 10_000) == 0.3
    # The length of the run is nothing to it, and without warmup it starts at the peak.
    longer = training(schedule="inverse_sqrt", min_learning_rate=0.3, steps=99)
    assert rates(longer, range(10)) == rates(config, range(10))
    assert rates(training(schedule="inverse_sqrt", warmup_steps=0), range(2)) == pytest.approx(
        [1.0, math.sqrt(1 / 2)]
    )


@pytest.mark.parametrize(
    ("form", "heights"),
    [
        (None, [0.75, 0.5, 0.25, 0.0]),
        ("linear", [0.75, 0.5, 0.25, 0.0]),
        ("cosine", [(1 + math.cos(math.pi * n / 4)) / 2 for n in range(1, 5)]),
        ("sqrt", [1 - math.sqrt(n / 4) for n in range(1, 5)]),
    ],
)
def test_wsd_is_stable_and_then_decays_in_its_last_steps(
    form: str | None, heights: list[float]
) -> None:
    config = training(schedule="wsd", decay_steps=4, decay_form=form, min_learning_rate=0.2)
    assert rates(config, range(3, 6)) == [1.0] * 3
    assert rates(config, range(6, 10)) == pytest.approx([0.2 + 0.8 * height for height in heights])


def test_wsd_decays_in_a_tenth_of_the_run_unless_told_and_never_before_the_warmup_ended() -> None:
    assert rates(training(schedule="wsd", steps=20), range(17, 20)) == [1.0, 0.5, 0.0]
    # Both fractions round up: the warmup keeps its steps.
    config = training(
        schedule="wsd", steps=3, warmup_steps=0, warmup_fraction=0.5, decay_fraction=0.5
    )
    assert rates(config, range(3)) == [0.5, 1.0, 0.0]


def test_constant_stays() -> None:
    config = training(schedule="constant")
    assert set(rates(config, range(3, 10))) == {1.0}


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_single_step_trains(warmup: int, schedule: str) -> None:
    config = training(steps=1, warmup_steps=warmup, schedule=schedule)
    assert learning_rate(config, 0) == 1.0
