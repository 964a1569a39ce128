"""AdamW over named parameters, with the usual exclusions from weight decay."""

from collections.abc import Callable, Iterable

import torch
from torch.nn import Parameter

from mfsdp_trainer.config import TrainingConfig

OptimizerFactory = Callable[[Iterable[tuple[str, Parameter]]], torch.optim.Optimizer]
"""What an engine calls with its own parameters, when they have become what the optimizer sees."""


def adamw(
    config: TrainingConfig, parameters: Iterable[tuple[str, Parameter]]
) -> torch.optim.Optimizer:
    """AdamW in two groups: matrices decay, biases and norms (fewer than two dimensions) do not."""
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for parameter in trained if parameter.dim() >= 2],
            "weight_decay": config.weight_decay,
        },
        {
            "params": [parameter for parameter in trained if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )
