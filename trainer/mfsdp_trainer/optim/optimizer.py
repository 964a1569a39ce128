"""The optimizer over named parameters, with the usual exclusions from weight decay."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.config.optimisation import OptimizerKind

OptimizerFactory = Callable[[Iterable[tuple[str, Parameter]]], torch.optim.Optimizer]
"""What an engine calls with its own parameters, when they have become what the optimizer sees."""


def make_optimizer(
    config: TrainingConfig, parameters: Iterable[tuple[str, Parameter]]
) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters in two groups: matrices decay, biases and norms
    (fewer than two dimensions) do not."""
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {
            "params": [parameter for parameter in trained if parameter.dim() >= 2],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer is OptimizerKind.SGD:
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )


def optimizer_state(config: TrainingConfig) -> str:
    """What a checkpoint holds beside the weights, in a word: a run must go on with the same."""
    if config.optimizer is OptimizerKind.SGD:
        return "sgd with momentum" if config.momentum else "sgd without momentum"
    return config.optimizer.value


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer that has not stepped the state that its first step would make.

    torch has no call for this, and a step with a learning rate of zero still counts as one.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # A look with [] alone would leave an empty state behind.
            if not optimizer.state.get(parameter) and (
                state := _first_state(optimizer, group, parameter)
            ):
                optimizer.state[parameter] = state


def _first_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Parameter
) -> dict[str, Tensor]:
    if isinstance(optimizer, torch.optim.SGD):
        # The first step makes the gradient the buffer: as it does on a buffer of zeros.
        return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
