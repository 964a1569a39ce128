"""How the same numbers are computed faster or in less memory: nothing here changes what is
learned."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from .base import ConfigModel
from .sharding import Engine, ResolvedSharding, ShardingStrategy


class Attention(StrEnum):
    """transformers' implementations of attention."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH = "flash_attention_2"
    FLEX = "flex_attention"


class PerformanceConfig(ConfigModel):
    """Choices that cost or save time and memory; the loss stays the same but for rounding."""

    attention: Attention | None = None
    """Implementation of attention: sdpa, eager, flash_attention_2 (needs GPUs, bf16,
    training.microBatchSize 1 and the flash-attn package in the image) or flex_attention (needs
    GPUs). Unset: sdpa where the model has it."""
    compile: bool = False
    """Compile each decoder layer with torch.compile: minutes at the start, faster steps. Needs a C
    compiler in the image."""
    prefetch_layers: int = Field(default=0, ge=0, le=16)
    """useTorchFSDP2: units gathered ahead of the one that computes. 0: FSDP2's own choice, one in
    the backward pass; each more holds one more whole layer."""
    separate_gather_group: bool = False
    """useMegatronFSDP: gather parameters over communicators of their own, so that a backward pass
    gathers and reduces side by side; NCCL takes some more memory."""
    double_buffer: bool = False
    """useMegatronFSDP with optim_grads_params: gather and reduce in two buffers that are kept, in
    place of memory that comes and goes."""
    nccl_user_buffers: bool = False
    """useMegatronFSDP with optim_grads_params: register those buffers with NCCL, which then needs
    fewer of the GPU's cores to communicate. Sets doubleBuffer."""


FLASH_NEEDS_GPUS: Final = (
    "performance.attention flash_attention_2 needs GPUs: set gpusPerNode, or use sdpa on the CPU"
)
FLEX_NEEDS_GPUS: Final = (
    "performance.attention flex_attention has no backward pass on the CPU: set gpusPerNode, or use "
    "sdpa"
)
FLASH_NEEDS_BF16: Final = (
    "performance.attention flash_attention_2 computes in bf16 alone: set training.precision to "
    "bf16, or use sdpa"
)
FLASH_NEEDS_ONE: Final = (
    "performance.attention flash_attention_2 keeps packed documents apart only one sequence at a "
    "time: set training.microBatchSize to 1, or use sdpa"
)
PREFETCH_NEEDS_FSDP2: Final = (
    "performance.prefetchLayers is torch FSDP2's: set useTorchFSDP2 to true, or leave it at 0 "
    "(Megatron FSDP always gathers one layer ahead)"
)
GATHER_GROUP_NEEDS_MEGATRON: Final = (
    "performance.separateGatherGroup is Megatron FSDP's: set useMegatronFSDP to true, or leave it "
    "out"
)
GATHERS_NEED_SHARDS: Final = (
    "performance.prefetchLayers and separateGatherGroup hasten the gathering of shards, and "
    "no_shard has none: leave them out, or choose another dataParallelShardingStrategy"
)
BUFFERS_NEED_MEGATRON: Final = (
    "performance.doubleBuffer and ncclUserBuffers are for Megatron FSDP's parameters that come and "
    "go: set useMegatronFSDP to true and dataParallelShardingStrategy to optim_grads_params, or "
    "leave both out"
)


def require_possible(
    performance: PerformanceConfig,
    sharding: ResolvedSharding,
    *,
    gpu: bool,
    bf16: bool,
    micro_batch_size: int,
) -> None:
    """Raises ValueError, naming field and fix, for a choice that the run cannot have."""
    flash = performance.attention is Attention.FLASH
    buffers = performance.double_buffer or performance.nccl_user_buffers
    megatron = sharding.engine is Engine.MEGATRON_FSDP
    fsdp2 = sharding.engine is Engine.TORCH_FSDP2
    whole_units = sharding.strategy is not ShardingStrategy.OPTIM_GRADS_PARAMS
    refusals = (
        (flash and not gpu, FLASH_NEEDS_GPUS),
        (performance.attention is Attention.FLEX and not gpu, FLEX_NEEDS_GPUS),
        (flash and not bf16, FLASH_NEEDS_BF16),
        (flash and micro_batch_size > 1, FLASH_NEEDS_ONE),
        (performance.prefetch_layers and not fsdp2, PREFETCH_NEEDS_FSDP2),
        (performance.separate_gather_group and not megatron, GATHER_GROUP_NEEDS_MEGATRON),
        (
            (performance.prefetch_layers or performance.separate_gather_group)
            and sharding.strategy is ShardingStrategy.NO_SHARD,
            GATHERS_NEED_SHARDS,
        ),
        (buffers and (not megatron or whole_units), BUFFERS_NEED_MEGATRON),
    )
    for refused, reason in refusals:
        if refused:
            raise ValueError(reason)
