"""Filling a model that an engine has sharded on the meta device: `Weights`, and its two kinds."""

from collections import defaultdict
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from .initialise import Recipes


class Weights(Protocol):
    """The numbers that a run starts from."""

    def fill(self, model: PreTrainedModel, device: torch.device) -> None:
        """Move the model off the meta device and give every parameter and buffer its value.

        Parameters may be DTensors: each rank keeps its slices. Not a collective. Raises
        TrainerError where values cannot be had.
        """


class RandomWeights:
    """Weights from (seed, name), by the model's own distributions."""

    def __init__(self, meta: PreTrainedModel, seed: int) -> None:
        self._recipes = Recipes(meta, seed)

    def fill(self, model: PreTrainedModel, device: torch.device) -> None:
        """See `Weights.fill`."""
        materialise(model, device)
        for name, parameter in model.named_parameters():
            assign(parameter, self._recipes.make(name))
        fill_buffers(model, self._recipes)


def materialise(model: nn.Module, device: torch.device) -> None:
    """Give the model memory, without values; tied weights stay one.

    `to_empty` alone gives each name of a tied weight a tensor of its own (FSDP2 mends that for its
    modules, a plain model does not).
    """
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners[id(parameter)].append((module, name))
    model.to_empty(device=device)
    for (first, its_name), *others in owners.values():
        for module, name in others:
            module._parameters[name] = first._parameters[its_name]


def fill_buffers(model: nn.Module, recipes: Recipes) -> None:
    """Give every buffer the value that the model computes for it at the start."""
    for name, buffer in model.named_buffers():
        assign(buffer, recipes.make(name))


@torch.no_grad()
def assign(target: Tensor, full: Tensor) -> None:
    """Copy a full tensor, or this rank's slice of it, into a parameter or buffer."""
    if not isinstance(target, DTensor):
        target.copy_(full)
        return
    # src_data_rank None: every rank has the full tensor already, so nothing is sent.
    sliced = distribute_tensor(
        full.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )
    target.to_local().copy_(sliced.to_local())
