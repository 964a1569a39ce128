"""The three FSDP fields, and the one place where the effective engine and batch are resolved from
them.

The fields are those of Megatron's command line: `use_megatron_fsdp`, `use_torch_fsdp2` and
`data_parallel_sharding_strategy`.
"""

from enum import StrEnum

from pydantic import Field

from .base import ConfigModel
from .batch import BatchRamp


class ShardingStrategy(StrEnum):
    """What data parallelism shards; each value includes the ones before it."""

    NO_SHARD = "no_shard"
    OPTIM = "optim"
    OPTIM_GRADS = "optim_grads"
    OPTIM_GRADS_PARAMS = "optim_grads_params"


class Engine(StrEnum):
    """Which implementation of data parallelism runs."""

    DDP = "ddp"
    MEGATRON_FSDP = "megatron_fsdp"
    TORCH_FSDP2 = "torch_fsdp2"


class ShardingFields(ConfigModel):
    """The user's choice of engine and strategy."""

    use_megatron_fsdp: bool = Field(default=False, alias="useMegatronFSDP")
    """Shard with Megatron FSDP instead of replicating with DDP; needs GPUs. At most one of
    useMegatronFSDP and useTorchFSDP2."""
    use_torch_fsdp2: bool = Field(default=False, alias="useTorchFSDP2")
    """Shard with torch FSDP2 (fully_shard). At rest FSDP2 keeps parameters, gradients and optimizer
    state sharded whatever the strategy; the strategy says when whole parameters live in between."""
    data_parallel_sharding_strategy: ShardingStrategy | None = None
    """What is sharded over the data-parallel ranks: no_shard (ZeRO-0), optim (ZeRO-1), optim_grads
    (ZeRO-2) or
    optim_grads_params (ZeRO-3). Unset means no_shard without an engine and optim_grads_params with
    one."""
    data_parallel_replicas: int = Field(default=1, ge=1, le=65536)
    """Hybrid sharding: how many copies of the sharded model exist; the world size must be a
    multiple of it."""


class ResolvedSharding(ConfigModel):
    """What the fields mean for one gang: written once, into the trainer's config and
    `status.sharding`."""

    engine: Engine
    """The engine in effect."""
    strategy: ShardingStrategy
    """The strategy in effect."""
    world_size: int
    """Processes in the gang: nodes x procsPerNode."""
    shard_size: int
    """Ranks that one copy of the model is sharded over: worldSize / dataParallelReplicas (1 under
    no_shard)."""
    micro_batches: int
    """Micro-batches that each rank accumulates for one optimizer step of globalBatchSize."""


def resolve_engine(fields: ShardingFields) -> Engine:
    """The engine that the two flags choose. Raises ValueError when both are set."""
    if fields.use_megatron_fsdp and fields.use_torch_fsdp2:
        raise ValueError(
            "useMegatronFSDP and useTorchFSDP2 exclude each other: set at most one of them to true"
        )
    if fields.use_megatron_fsdp:
        return Engine.MEGATRON_FSDP
    return Engine.TORCH_FSDP2 if fields.use_torch_fsdp2 else Engine.DDP


def resolve_strategy(fields: ShardingFields, engine: Engine) -> ShardingStrategy:
    """The strategy in effect. Raises ValueError for a sharding strategy without an engine to do
    it."""
    chosen = fields.data_parallel_sharding_strategy
    if engine is not Engine.DDP:
        return chosen or ShardingStrategy.OPTIM_GRADS_PARAMS
    if chosen not in (None, ShardingStrategy.NO_SHARD):
        raise ValueError(
            f"dataParallelShardingStrategy {chosen} needs an engine: "
            "set useTorchFSDP2 or useMegatronFSDP to true, or use no_shard"
        )
    return ShardingStrategy.NO_SHARD


def resolve_sharding(
    fields: ShardingFields,
    *,
    world_size: int,
    micro_batch_size: int,
    global_batch_size: int,
    batch_ramp: BatchRamp | None = None,
) -> ResolvedSharding:
    """Resolve the fields for a gang of `world_size` ranks; batch sizes are in sequences.

    Raises ValueError that names the field and the fix.
    """
    engine = resolve_engine(fields)
    strategy = resolve_strategy(fields, engine)
    replicas = fields.data_parallel_replicas
    if world_size % replicas:
        raise ValueError(
            f"dataParallelReplicas {replicas} must divide the world size {world_size} "
            "(nodes x procsPerNode)"
        )
    if replicas > 1 and engine is Engine.DDP:
        raise ValueError(
            "dataParallelReplicas above 1 needs an engine: "
            "set useTorchFSDP2 or useMegatronFSDP to true"
        )
    per_micro_step = micro_batch_size * world_size
    if global_batch_size % per_micro_step:
        raise ValueError(
            f"training.globalBatchSize {global_batch_size} must be a multiple of "
            "training.microBatchSize x nodes x procsPerNode = "
            f"{micro_batch_size} x {world_size} = {per_micro_step}"
        )
    if batch_ramp and (batch_ramp.start % per_micro_step or batch_ramp.increment % per_micro_step):
        raise ValueError(
            f"training.batchRamp.start {batch_ramp.start} and increment {batch_ramp.increment} "
            "must be multiples of training.microBatchSize x nodes x procsPerNode = "
            f"{micro_batch_size} x {world_size} = {per_micro_step}"
        )
    return ResolvedSharding(
        engine=engine,
        strategy=strategy,
        world_size=world_size,
        shard_size=1 if strategy is ShardingStrategy.NO_SHARD else world_size // replicas,
        micro_batches=global_batch_size // per_micro_step,
    )
