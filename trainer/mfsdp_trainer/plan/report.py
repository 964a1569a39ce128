"""The whole plan of a job: every way to run it, which is the least that fits, and what would
help."""

from mfsdp_trainer.config import ConfigModel, TrainerConfig, TrainingConfig
from mfsdp_trainer.config.optimisation import OptimizerKind
from mfsdp_trainer.config.training import Recompute

from .batch import Batch
from .changes import Change, changes
from .choices import Choice, choices
from .facts import ModelFacts
from .gpus import Gpu
from .memory import Job
from .rows import Row, least


class Report(ConfigModel):
    """What `mfsdp plan` says. Sizes are bytes of one GPU."""

    model_type: str
    parameters: int
    trained: int
    batch: Batch
    gpu: Gpu
    rows: tuple[Row, ...]
    chosen: Row
    """What the job says."""
    recomputed: Row
    """The same, if every decoder layer were computed again in its backward pass."""
    least: Row | None
    """The least sharded of the rows that fit, of the job's own engine if one does."""
    changes: tuple[Change, ...]
    """Where none fits: what would help."""
    untraced: str | None
    """Why activations are unknown, if they are."""


def report(config: TrainerConfig, facts: ModelFacts, gpu: Gpu) -> Report:
    """Add everything up."""
    sharding, job = config.resolve(), job_of(config)
    own = Choice.of(config, config.nodes)
    ways = [*choices(sharding.world_size, (config.data_parallel_replicas, config.nodes))]
    if own not in ways:
        ways.append(own)
    rows = tuple(Row.of(facts, job, gpu, way) for way in ways)
    fitting = least(rows, own.engine) or least(rows)
    return Report(
        model_type=facts.model_type,
        parameters=facts.elements(),
        trained=facts.elements(trained=True),
        batch=Batch.of(config),
        gpu=gpu,
        rows=rows,
        chosen=Row.of(facts, job, gpu, own),
        recomputed=Row.of(facts, job.model_copy(update={"recompute": Recompute.FULL}), gpu, own),
        least=fitting,
        changes=() if fitting else changes(config, job, facts, gpu),
        untraced=facts.untraced,
    )


def job_of(config: TrainerConfig) -> Job:
    """What of a configuration decides its memory."""
    return Job(
        precision=config.training.precision,
        micro_batch=config.training.micro_batch_size,
        micro_batches=config.resolve().micro_batches,
        moments=_moments(config.training),
        recompute=config.training.recompute,
    )


def _moments(training: TrainingConfig) -> int:
    if training.optimizer is OptimizerKind.SGD:
        return 1 if training.momentum else 0
    return 2
