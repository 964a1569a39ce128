"""Parameters that are not trained: no gradient, no optimizer state, no masters."""

import re
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from mfsdp_trainer.errors import ConfigError


def freeze(model: PreTrainedModel, patterns: Sequence[str]) -> None:
    """Freeze the parameters of a meta model that a pattern is found in the name of.

    A tied weight has two names and goes by either. Raises ConfigError for a pattern that meets no
    parameter, and where nothing is left to train.
    """
    if not patterns:
        return
    named = list(model.named_parameters(remove_duplicate=False))
    for number, pattern in enumerate(patterns):
        met = [parameter for name, parameter in named if re.search(pattern, name)]
        if not met:
            raise ConfigError(
                f"training.freeze[{number}]: {pattern!r} meets no parameter of this model: names "
                f"are like {named[len(named) // 2][0]}"
            )
        for parameter in met:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise ConfigError(
            f"training.freeze: {', '.join(map(repr, patterns))} leave nothing to train: "
            f"all {len(named)} parameters are met"
        )


def frozen_names(model: nn.Module) -> list[str]:
    """Names of the parameters that are not trained, sorted."""
    return sorted(name for name, p in model.named_parameters() if not p.requires_grad)


def without_masters(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold what is frozen in the number format of the computation: nothing updates it in fp32."""
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
