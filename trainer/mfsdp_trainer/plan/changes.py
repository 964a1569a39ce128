"""What would help a job that fits a GPU under no engine and strategy."""

from collections.abc import Iterator

from mfsdp_trainer.config import ConfigModel, Engine, TrainerConfig
from mfsdp_trainer.config.training import Recompute

from .choices import Choice, choices
from .facts import ModelFacts
from .gpus import Gpu
from .memory import Job
from .rows import Row, least

_TIMES = (2, 4, 8, 16, 32, 64)
"""How many times the nodes are tried."""

type _Fields = dict[str, str | int]


class Change(ConfigModel):
    """A change to a job with which it fits."""

    fields: _Fields
    """Fields of the spec and their new values."""
    row: Row
    """The job's own engine and strategy where they fit then, else the least sharded that do."""


def changes(config: TrainerConfig, job: Job, facts: ModelFacts, gpu: Gpu) -> tuple[Change, ...]:
    """Changes that are enough by themselves: one field, else several, else the fewest nodes."""
    smaller, recomputed = _smaller(job), _recomputed(job)
    both = {**smaller, **recomputed}
    for alternatives in ((smaller, recomputed), (both,)):
        found = [_change(config, job, facts, gpu, fields) for fields in alternatives if fields]
        if enough := tuple(change for change in found if change is not None):
            return enough
    for nodes in _nodes(config):
        # More nodes share the batch evenly in micro-batches of one sequence.
        for fields in (smaller, both):
            if change := _change(config, job, facts, gpu, {"nodes": nodes, **fields}):
                return (change,)
    return ()


def _smaller(job: Job) -> _Fields:
    return {"training.microBatchSize": 1} if job.micro_batch > 1 else {}


def _recomputed(job: Job) -> _Fields:
    full = Recompute.FULL
    return {"training.recompute": full.value} if job.recompute is not full else {}


def _nodes(config: TrainerConfig) -> Iterator[int]:
    """More nodes that share the batch evenly."""
    for times in _TIMES:
        if config.training.global_batch_size % (config.world_size * times) == 0:
            yield config.nodes * times


def _change(
    config: TrainerConfig, job: Job, facts: ModelFacts, gpu: Gpu, fields: _Fields
) -> Change | None:
    """These fields, if they are enough."""
    nodes = int(fields.get("nodes", config.nodes))
    row = _fitting(config, _changed(job, fields, nodes // config.nodes), facts, gpu, nodes=nodes)
    return None if row is None else Change(fields=fields, row=row)


def _changed(job: Job, fields: _Fields, times: int) -> Job:
    """The job with other fields, and so many times the nodes."""
    size = int(fields.get("training.microBatchSize", job.micro_batch))
    return job.model_copy(
        update={
            "micro_batch": size,
            "micro_batches": job.micro_batches * job.micro_batch // size // times,
            "recompute": Recompute(str(fields.get("training.recompute", job.recompute))),
        }
    )


def _fitting(
    config: TrainerConfig, job: Job, facts: ModelFacts, gpu: Gpu, *, nodes: int
) -> Row | None:
    """The job's own way if it fits, else the least of its engine; of FSDP2 for DDP."""
    engine, world = config.resolve().engine, nodes * config.procs_per_node
    own = Row.of(facts, job, gpu, Choice.of(config, nodes))
    if own.fits:
        return own
    ways = choices(world, (config.data_parallel_replicas, nodes))
    sharding = Engine.TORCH_FSDP2 if engine is Engine.DDP else engine
    return least((Row.of(facts, job, gpu, way) for way in ways), sharding)
