"""From the meta device into Megatron FSDP's buffers without a whole model on any rank.

The package's own start from the meta device asks every module to initialise itself, unties tied
weights and leaves computed buffers empty. Here an evenly sharded twin of the model is filled
first, as under torch FSDP2; the model is wrapped around parameters without memory; then each
parameter is gathered from the twin and its rows are copied to where they belong.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from mfsdp_trainer.world import World


def filled_twin(
    model: PreTrainedModel, world: World, fill: Callable[[PreTrainedModel], None]
) -> PreTrainedModel:
    """A copy of a meta model with its numbers, in fp32, each rank with 1/N. Collective."""
    twin = copy.deepcopy(model)
    fully_shard(twin, mesh=init_device_mesh(world.device.type, (world.size,)))
    fill(twin)
    return twin


def whole(tensor: Tensor) -> Tensor:
    """A parameter of the twin in one piece. Collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def place(
    model: PreTrainedModel,
    twin: PreTrainedModel,
    device: torch.device,
    dtype: torch.dtype,
    *,
    memory: bool,
) -> None:
    """Take a meta model to its device: buffers from the twin, parameters of undefined value.

    Parameters take the dtype of the computation, buffers keep theirs: rotary frequencies in bf16
    are so far off after a thousand positions that a cosine is wrong by 0.9. Without `memory` all
    elements of a parameter are one and the same, for a wrapper that replaces them.
    """
    placed: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if parameter not in placed:
                data = _blank(parameter.shape, device, dtype, memory=memory)
                placed[parameter] = nn.Parameter(data, requires_grad=parameter.requires_grad)
            # A tied weight is in two places, and stays one.
            module._parameters[name] = placed[parameter]
    for name, buffer in twin.named_buffers():
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._buffers[last] = buffer


def _blank(shape: torch.Size, device: torch.device, dtype: torch.dtype, *, memory: bool) -> Tensor:
    if memory:
        return torch.empty(shape, dtype=dtype, device=device)
    one = torch.zeros(1, dtype=dtype, device=device)
    # Not expand(): the package refuses views.
    return torch.empty(0, dtype=dtype, device=device).set_(
        one.untyped_storage(), 0, shape, (0,) * len(shape)
    )
