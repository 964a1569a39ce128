"""How a model is wrapped in Megatron FSDP: process groups, units, sizes and number formats.

`fully_shard_model` of the package is not used: it hides the size of a communication unit, and
registers hooks on the optimizer that this engine must not have. The class beneath it takes
everything.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from mfsdp_trainer.config import PerformanceConfig, ResolvedSharding, ShardingStrategy
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models.architecture import decoder_layers, is_tied
from mfsdp_trainer.world import World

from .buffers import use_torchs_allocator

with warnings.catch_warnings():
    # It warns of TransformerEngine and Apex, which this engine does not need.
    warnings.simplefilter("ignore")
    from megatron.core.distributed import (  # type: ignore[import-untyped]
        DistributedDataParallelConfig,
    )
    from megatron.core.distributed.fsdp.src.megatron_fsdp import (  # type: ignore[import-untyped]
        FSDPDistributedIndex,
        MegatronFSDP,
        MixedPrecisionPolicy,
    )

_REPLICATE: Final = "replicate"
_SHARD: Final = "shard"
_TENSOR: Final = "tensor"
"""Tensor parallelism is always 1 here, but the package asks for its dimension."""


@dataclass(frozen=True)
class Layout:
    """What is sharded over how many ranks, in effect."""

    strategy: ShardingStrategy
    shards: int
    """Ranks that share one copy of what the strategy shards, or all ranks under no_shard."""
    copies: int

    @classmethod
    def of(cls, sharding: ResolvedSharding, world: World) -> "Layout":
        """Over one rank nothing is sharded: that is no_shard, whatever the name.

        Left as asked for, the package would average gradients that are whole on each rank after
        every micro-batch: what earlier ones brought would be divided again and again.
        """
        if sharding.shard_size == 1:
            return cls(ShardingStrategy.NO_SHARD, world.size, 1)
        return cls(sharding.strategy, sharding.shard_size, world.size // sharding.shard_size)


class _Unit(type):
    """A class whose instances are chosen one by one.

    The package takes units by class; a head is an `nn.Linear` as are a hundred other modules.
    """

    members: frozenset[int]

    def __instancecheck__(cls, instance: object) -> bool:
        return id(instance) in cls.members


def units(model: PreTrainedModel, strategy: ShardingStrategy) -> list[nn.Module]:
    """Modules whose parameters are gathered, and released, together.

    Where parameters stay whole there are none: to release them would only mean to gather them once
    more. Tied embedding and head stay whole always, because a unit's parameters must not be
    used outside of it.
    """
    if strategy is not ShardingStrategy.OPTIM_GRADS_PARAMS:
        return []
    layers = list(decoder_layers(model))
    if not layers:
        raise ConfigError(
            f"model: {type(model).__name__} has no list of layers to shard by: set "
            "dataParallelShardingStrategy to optim_grads, which keeps parameters whole"
        )
    if is_tied(model):
        return layers
    return [*layers, model.get_input_embeddings(), model.get_output_embeddings()]


def communication_unit(model: PreTrainedModel) -> int:
    """Elements of the largest decoder layer, or of the model if it has none."""
    return max(map(_elements, decoder_layers(model)), default=_elements(model))


def _elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _index(world: World, layout: Layout, *, gather_group: bool) -> Any:
    hybrid = layout.copies > 1
    mesh = _mesh(world, layout)
    gathers = _gather_group(world, layout) if gather_group else None
    return FSDPDistributedIndex(
        device_mesh=mesh,
        dp_shard_dim=_SHARD,
        dp_outer_dim=_REPLICATE if hybrid else None,
        tp_dim=_TENSOR,
        hybrid_fsdp_group=dist.group.WORLD if hybrid else None,
        # Parameters with `.experts.` in their name are taken for expert-parallel ones, which live
        # in groups of their own. Here they are sharded like all others.
        expt_device_mesh=mesh,
        hybrid_fsdp_expt_group=dist.group.WORLD if hybrid else None,
        fsdp_group_ag=gathers,
        expt_fsdp_group_ag=gathers,
    )


def _gather_group(world: World, layout: Layout) -> ProcessGroup:
    """A second group of the ranks that share a copy with this one. Collective."""
    starts = range(0, world.size, layout.shards)
    groups = [dist.new_group(list(range(start, start + layout.shards))) for start in starts]
    group = groups[world.rank // layout.shards]
    assert isinstance(group, ProcessGroup)
    return group


def _mesh(world: World, layout: Layout) -> DeviceMesh:
    sizes = {_REPLICATE: layout.copies, _SHARD: layout.shards, _TENSOR: 1}
    if layout.copies == 1:
        del sizes[_REPLICATE]
    return init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _settings(
    strategy: ShardingStrategy, unit: int, performance: PerformanceConfig, device: torch.device
) -> Any:
    # Buffers are of units, which there are none of where parameters stay whole.
    units = strategy is ShardingStrategy.OPTIM_GRADS_PARAMS
    registered = units and performance.nccl_user_buffers
    return DistributedDataParallelConfig(
        data_parallel_sharding_strategy=strategy.value,
        # Sharding over copies too ("optim") forgets to average: gradients come out as their sum.
        outer_dp_sharding_strategy="no_shard",
        # Without overlap, and after the last micro-batch, "optim" reduces gradients twice.
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        # The package's default, but the reduction that divides as well is NCCL's alone.
        gradient_reduce_div_fusion=device.type == "cuda",
        # Left open, neither is ever below a thousand million elements: models of less than that
        # would be gathered whole.
        suggested_communication_unit_size=2 * unit,
        bucket_size=unit,
        fsdp_double_buffer=registered or (units and performance.double_buffer),
        nccl_ub=registered,
        # All at once after the first step, in place of one by one while it waits for each.
        fsdp_manual_registration=registered,
    )


def wrap(
    model: PreTrainedModel,
    world: World,
    layout: Layout,
    wrapped_units: Iterable[nn.Module],
    performance: PerformanceConfig,
) -> Any:
    """The model in MegatronFSDP: its parameters are now views into the package's buffers.

    Parameters must be on the device, in the number format of the computation. Collective.
    """
    dtype = next(model.parameters()).dtype
    unit_size = communication_unit(model)
    settings = _settings(layout.strategy, unit_size, performance, world.device)
    if settings.nccl_ub:
        use_torchs_allocator(world.device)
    unit = _Unit("Unit", (), {"members": frozenset(map(id, wrapped_units))})
    return MegatronFSDP(
        model,
        dist_index=_index(world, layout, gather_group=performance.separate_gather_group),
        ddp_config=settings,
        mixed_precision_policy=MixedPrecisionPolicy(
            # fp32 weights are their own masters.
            main_params_dtype=None if dtype is torch.float32 else torch.float32,
            main_grads_dtype=torch.float32,
        ),
        fsdp_unit_modules=[unit],
        device=world.device,
        # True averages after each micro-batch: "optim" would average the first ones repeatedly.
        sync_model_each_microbatch=False,
    )
