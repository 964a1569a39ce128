"""Every engine and strategy that a gang could run under, and how each lays out the ranks."""

from collections.abc import Iterable, Iterator

from mfsdp_trainer.config import ConfigModel, Engine, ShardingStrategy, TrainerConfig


class Choice(ConfigModel):
    """One way to run."""

    engine: Engine
    strategy: ShardingStrategy
    world: int
    """Ranks of the gang."""
    replicas: int = 1
    """dataParallelReplicas."""

    @classmethod
    def of(cls, config: TrainerConfig, nodes: int) -> "Choice":
        """What a configuration names, on so many nodes."""
        sharding = config.resolve()
        return cls(
            engine=sharding.engine,
            strategy=sharding.strategy,
            world=nodes * config.procs_per_node,
            replicas=config.data_parallel_replicas,
        )

    @property
    def shards(self) -> int:
        """Ranks that share one copy of what the strategy shards."""
        if self.strategy is ShardingStrategy.NO_SHARD:
            return 1
        return self.world // self.replicas

    @property
    def copies(self) -> int:
        """Ranks that hold the same shard."""
        return self.world // self.shards


def choices(world: int, replicas: Iterable[int]) -> Iterator[Choice]:
    """All of them, an engine's from the least sharded to the most.

    `replicas` are numbers of copies to look at; those that leave nothing to shard are passed over.
    """
    # More copies shard less.
    wanted = sorted({r for r in replicas if world % r == 0 and r < world} | {1}, reverse=True)
    yield Choice(engine=Engine.DDP, strategy=ShardingStrategy.NO_SHARD, world=world)
    for engine in (Engine.TORCH_FSDP2, Engine.MEGATRON_FSDP):
        yield Choice(engine=engine, strategy=ShardingStrategy.NO_SHARD, world=world)
        for strategy in list(ShardingStrategy)[1:]:
            for copies in wanted:
                yield Choice(engine=engine, strategy=strategy, world=world, replicas=copies)
