"""From what the user wrote to what runs: every default that depends on another field, once.

Pure. The same rules stand as CEL in the CRD (`cel.py`), so that `kubectl apply` refuses early; here
they hold for files that never saw an API server, and for the few things that CEL cannot see
(anything inside `template`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from mfsdp_trainer.config import (
    CheckpointConfig,
    ResolvedSharding,
    ShardingStrategy,
    TrainerConfig,
    resolve_sharding,
)

from .problems import InvalidSpecError, describe
from .spec import JobSpec
from .template import MAX_CONNECTIONS_ENV, env_value, has_own_program, shape_problems

BUILT_IN_SECTIONS = ("model", "data", "training")
_SYSTEM_DIRECTORIES = ("/dev", "/etc", "/proc", "/sys", "/tmp", "/usr", "/bin", "/lib", "/sbin")


@dataclass(frozen=True, slots=True)
class ResolvedJob:
    """What a job's spec means.

    `trainer` is the file that the built-in trainer is started with; None for a program of the
    user's own that was given no complete trainer configuration.
    """

    sharding: ResolvedSharding
    trainer: TrainerConfig | None
    procs_per_node: int
    world_size: int
    gpus: int
    own_program: bool


def resolve(spec: JobSpec) -> ResolvedJob:
    """Resolve a well-formed spec. Raises InvalidSpecError with a line for every problem, each naming its
    field and the fix."""
    problems = list(spec_problems(spec))
    if problems:
        raise InvalidSpecError(problems)
    own_program = has_own_program(spec.template)
    world_size = spec.nodes * spec.resolved_procs_per_node
    sharding = _sharding(spec, world_size)
    trainer = _trainer_config(spec, sharding.strategy)
    return ResolvedJob(
        sharding=sharding,
        trainer=trainer,
        procs_per_node=spec.resolved_procs_per_node,
        world_size=world_size,
        gpus=spec.nodes * spec.gpus_per_node,
        own_program=own_program,
    )


def spec_problems(spec: JobSpec) -> Iterator[str]:
    """What is wrong with a spec beyond its fields' own types and bounds, in the order of fields."""
    yield from _process_problems(spec)
    yield from _path_problems(spec)
    yield from shape_problems(spec.template)
    if not has_own_program(spec.template):
        for section in BUILT_IN_SECTIONS:
            if getattr(spec, section) is None:
                yield (
                    f"spec.{section}: required, unless template gives the container trainer a "
                    "command of its own"
                )
    engine = spec.use_megatron_fsdp or spec.use_torch_fsdp2
    if engine and env_value(spec.template, MAX_CONNECTIONS_ENV) == "1":
        yield (
            f"spec.template: {MAX_CONNECTIONS_ENV}=1 makes sharding engines wait for their own "
            "communication: leave it unset (the operator sets 32)"
        )
    yield from _sharding_problems(spec)


def _process_problems(spec: JobSpec) -> Iterator[str]:
    if spec.gpus_per_node and spec.resolved_procs_per_node > spec.gpus_per_node:
        yield (
            f"spec.procsPerNode: {spec.procs_per_node} is more than gpusPerNode "
            f"{spec.gpus_per_node}: each process needs a GPU of its own"
        )
    if spec.use_megatron_fsdp and not spec.gpus_per_node:
        yield (
            "spec.useMegatronFSDP: needs GPUs: set gpusPerNode to 1 or more, or use useTorchFSDP2 "
            "on CPUs"
        )


def _path_problems(spec: JobSpec) -> Iterator[str]:
    path = spec.checkpoint.path
    if not path.startswith("/") or ".." in path.split("/") or ":" in path:
        yield f"spec.checkpoint.path: {path} must be an absolute path without '..' and ':'"
        return
    if path.rstrip("/") == "":
        yield "spec.checkpoint.path: must be a directory below /, for instance /checkpoints"
    for directory in _SYSTEM_DIRECTORIES:
        if path == directory or path.startswith(directory + "/"):
            yield (
                f"spec.checkpoint.path: {path} is inside {directory}, which belongs to the "
                "container: use a directory of its own, for instance /checkpoints"
            )


def _sharding_problems(spec: JobSpec) -> Iterator[str]:
    try:
        _sharding(spec, spec.nodes * spec.resolved_procs_per_node)
    except ValueError as error:
        yield f"spec: {error}"


def _sharding(spec: JobSpec, world_size: int) -> ResolvedSharding:
    """Engine, strategy and batch; a program that brings its own batch counts as one micro-batch."""
    training = spec.training
    return resolve_sharding(
        spec,
        world_size=world_size,
        micro_batch_size=training.micro_batch_size if training else 1,
        global_batch_size=training.global_batch_size if training else world_size,
    )


def _trainer_config(spec: JobSpec, strategy: ShardingStrategy) -> TrainerConfig | None:
    if spec.model is None or spec.data is None or spec.training is None:
        return None
    shared = {name: getattr(spec, name) for name in TrainerConfig.model_fields}
    shared["procs_per_node"] = spec.resolved_procs_per_node
    # Written out: what the default is depends on the version, and a pinned job must not.
    shared["data_parallel_sharding_strategy"] = strategy
    # The volume is the operator's business; the trainer only knows the directory.
    shared["checkpoint"] = CheckpointConfig(
        **{name: getattr(spec.checkpoint, name) for name in CheckpointConfig.model_fields}
    )
    try:
        return TrainerConfig(**shared)
    except ValidationError as error:
        raise InvalidSpecError(describe(error, "spec")) from error
