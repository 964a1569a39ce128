"""Which parameters decay, and state that is made before the first step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.optim import make_optimizer, materialise

KINDS = [{}, {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0}]


def training(**changes: Any) -> TrainingConfig:
    return TrainingConfig(**{"steps": 10, "global_batch_size": 1, **changes})


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4), nn.LayerNorm(4))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_norms_and_biases_do_not_decay_and_embeddings_do(kind: dict[str, Any]) -> None:
    trained = model()
    trained[1].weight.requires_grad_(False)
    optimizer = make_optimizer(training(weight_decay=0.3, **kind), trained.named_parameters())
    decayed, exempt = optimizer.param_groups
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.3, 0.0)
    assert decayed["params"] == [trained[0].weight]
    assert [tuple(parameter.shape) for parameter in exempt["params"]] == [(4,)] * 3


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_state_made_before_the_first_step_changes_nothing(kind: dict[str, Any]) -> None:
    def trained(*, early: bool) -> tuple[list[Tensor], list[dict[str, Any]]]:
        network = model()
        optimizer = make_optimizer(training(**kind), network.named_parameters())
        if early:
            materialise(optimizer)
        for _ in range(3):
            network(torch.arange(4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(network.parameters()), list(optimizer.state.values())

    (weights, state), (wanted, wanted_state) = trained(early=True), trained(early=False)
    assert all(torch.equal(a, b) for a, b in zip(weights, wanted, strict=True))
    for ours, theirs in zip(state, wanted_state, strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), ours
        assert {k for k, v in theirs.items() if v is not None} == ours.keys()
