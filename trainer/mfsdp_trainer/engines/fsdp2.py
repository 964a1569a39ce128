"""The `torch_fsdp2` engine: torch's `fully_shard` under all four strategies, and hybrid sharding.

FSDP2 keeps parameters, gradients and optimizer state sharded at rest whatever the strategy; a
strategy says when whole parameters and whole gradients live in between:

    no_shard            the shard has one rank: parameters whole always, gradients until the end
    optim               both whole from the first micro-batch of a step to the last
    optim_grads         parameters whole from a micro-batch's forward to its backward
    optim_grads_params  parameters whole while a unit computes
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from mfsdp_trainer.config import ResolvedSharding, ShardingStrategy
from mfsdp_trainer.models.architecture import decoder_layers, is_tied
from mfsdp_trainer.world import World

from .base import Setup
from .common import TorchEngine

_WHOLE_GRADIENTS: Final = (ShardingStrategy.NO_SHARD, ShardingStrategy.OPTIM)


def _mesh(world: World, sharding: ResolvedSharding) -> DeviceMesh:
    """Copies x shards; one dimension where there is one copy."""
    copies = world.size // sharding.shard_size
    if copies == 1:
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    return init_device_mesh(
        world.device.type, (copies, sharding.shard_size), mesh_dim_names=("replicate", "shard")
    )


def _units(model: PreTrainedModel) -> list[nn.Module]:
    """What is gathered and released together, in the order of the forward pass."""
    layers = list(decoder_layers(model))
    if is_tied(model):
        return layers
    units = [model.get_input_embeddings(), *layers, model.get_output_embeddings()]
    return [unit for unit in units if unit is not None]


def _prefetch(units: list[nn.Module], ahead: int) -> None:
    """Gather so many units ahead of the one that computes, in both directions."""
    for place, unit in enumerate(units):
        assert isinstance(unit, FSDPModule)
        unit.set_modules_to_forward_prefetch(_sharded(units[place + 1 : place + 1 + ahead]))
        before = units[max(0, place - ahead) : place]
        unit.set_modules_to_backward_prefetch(_sharded(before[::-1]))


def _sharded(units: list[nn.Module]) -> list[FSDPModule]:
    return [unit for unit in units if isinstance(unit, FSDPModule)]


def _shard(setup: Setup) -> None:
    """One unit a decoder layer; embedding and head are units too, unless they are one weight.

    A weight belongs to one unit: tied ones stay with the root. Untied ones must not: their fp32
    gradients would be reduced in one piece, gigabytes of a large vocabulary.
    """
    model = setup.model
    units = _units(model)
    mesh = _mesh(setup.world, setup.sharding)
    policy = MixedPrecisionPolicy(param_dtype=setup.compute_dtype, reduce_dtype=torch.float32)
    reshard = setup.sharding.strategy is ShardingStrategy.OPTIM_GRADS_PARAMS
    head: nn.Module | None = model.get_output_embeddings()
    for unit in units:
        # The last unit of the forward pass is the first of the backward: kept until then, as the
        # root's parameters are.
        again = reshard and unit is not head
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    if isinstance(head, FSDPModule):
        head.register_forward_pre_hook(_gather_now, prepend=True)
    if setup.performance.prefetch_layers:
        _prefetch(units, setup.performance.prefetch_layers)


def _gather_now(head: nn.Module, _: object) -> None:
    """Gather the head just before FSDP2 would, which would keep the buffer gathered into as well.

    It does so for the next gather to begin earlier: after the head there is none, and the buffer
    would lie beside the logits, as large as the head itself.
    """
    assert isinstance(head, FSDPModule)
    head.unshard()


class Fsdp2Engine(TorchEngine):
    """See `Engine`."""

    def __init__(self, setup: Setup) -> None:
        self._strategy = setup.sharding.strategy
        _shard(setup)
        setup.fill(setup.model)
        super().__init__(setup)

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self._model, FSDPModule)
        return self._model

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """See `Engine.micro_batch`."""
        if self._strategy in _WHOLE_GRADIENTS:
            # Resharding after the last backward is not to be left out: the optimizer would be
            # handed whole parameters that are not its own.
            self._root.set_requires_gradient_sync(last)
            self._root.set_reshard_after_backward(last)
        else:
            # Sharded gradients are reduced at once inside a copy, between copies once a step.
            self._root.set_requires_all_reduce(last)
        yield

    def _forward(self, **inputs: Any) -> Tensor:
        answer: Tensor = self._model(**inputs)[0]
        return answer

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """See `Engine.evaluation`: what a forward left whole is resharded at the end.

        No backward follows to do it, and until then `parameters()` are not the optimizer's.
        """
        self._model.eval()
        with torch.no_grad():
            yield
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        self._model.train()
