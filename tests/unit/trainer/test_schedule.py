"""Warmup, peak and decay of the learning rate; which parameters decay."""

from typing import Any

import pytest
from torch import nn

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.optim import adamw, learning_rate


def training(**changes: Any) -> TrainingConfig:
    values = {"steps": 10, "global_batch_size": 1, "learning_rate": 1.0, "warmup_steps": 4}
    return TrainingConfig(**{**values, **changes})


def test_warmup_is_linear_and_reaches_the_peak_with_its_last_step() -> None:
    assert [learning_rate(training(), step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_starts_at_the_peak_and_ends_at_the_minimum_with_the_last_step() -> None:
    config = training(min_learning_rate=0.1)
    assert learning_rate(config, 4) == 1.0
    assert learning_rate(config, 9) == pytest.approx(0.1)
    rates = [learning_rate(config, step) for step in range(4, 10)]
    assert rates == sorted(rates, reverse=True)


def test_constant_stays() -> None:
    config = training(schedule="constant")
    assert {learning_rate(config, step) for step in range(3, 10)} == {1.0}


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_single_step_trains(warmup: int) -> None:
    assert learning_rate(training(steps=1, warmup_steps=warmup), 0) == 1.0


def test_norms_and_biases_do_not_decay() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    model[1].weight.requires_grad_(False)
    decayed, exempt = adamw(training(weight_decay=0.3), model.named_parameters()).param_groups
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)
    assert [tuple(parameter.shape) for parameter in decayed["params"]] == [(4, 4)]
    assert [tuple(parameter.shape) for parameter in exempt["params"]] == [(4,)] * 3
