"""What would help a job that fits a GPU under no engine and strategy."""

from collections.abc import Iterator

from mfsdp_trainer.config import ConfigModel, Engine, TrainerConfig

from .choices import choices
from .facts import ModelFacts
from .gpus import Gpu
from .memory import Job
from .rows import Row, least

_TIMES = (2, 4, 8, 16, 32, 64)
"""How many times the nodes are tried."""


class Change(ConfigModel):
    """A change to a job with which it fits, and the least sharded way to run it then."""

    fields: dict[str, str | int]
    """Fields of the spec and their new values."""
    row: Row


def changes(config: TrainerConfig, job: Job, facts: ModelFacts, gpu: Gpu) -> tuple[Change, ...]:
    """Changes that are enough by themselves; of more nodes, and of those only the fewest."""
    frugal: dict[str, str | int] = {}
    if job.micro_batch > 1:
        frugal["training.microBatchSize"] = 1
        job = job.model_copy(
            update={"micro_batch": 1, "micro_batches": job.micro_batches * job.micro_batch}
        )
        if (found := _least(config, job, facts, gpu, nodes=config.nodes)) is not None:
            return (Change(fields=frugal, row=found),)
    for nodes in _nodes(config):
        more = job.model_copy(update={"micro_batches": job.micro_batches * config.nodes // nodes})
        if (found := _least(config, more, facts, gpu, nodes=nodes)) is not None:
            return (Change(fields={"nodes": nodes, **frugal}, row=found),)
    return ()


def _nodes(config: TrainerConfig) -> Iterator[int]:
    """More nodes that share the batch evenly."""
    for times in _TIMES:
        if config.training.global_batch_size % (config.world_size * times) == 0:
            yield config.nodes * times


def _least(
    config: TrainerConfig, job: Job, facts: ModelFacts, gpu: Gpu, *, nodes: int
) -> Row | None:
    """The least that fits of the job's own engine; of FSDP2 for a job without one."""
    own = config.resolve().engine
    engine = Engine.TORCH_FSDP2 if own is Engine.DDP else own
    world = nodes * config.procs_per_node
    ways = choices(world, (config.data_parallel_replicas, nodes))
    return least((Row.of(facts, job, gpu, way) for way in ways), engine)
