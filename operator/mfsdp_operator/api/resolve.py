"""From what the user wrote to what runs: every default that depends on another field, once.

Pure. The same rules stand as CEL in the CRD (`cel.py`, words in `rules.py`), so that `kubectl
apply` refuses early; here they hold for files that never saw an API server, and for the shapes
inside `template` that have no schema.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from mfsdp_trainer.config import (
    CheckpointConfig,
    ResolvedSharding,
    ShardingStrategy,
    TrainerConfig,
    resolve_sharding,
)
from mfsdp_trainer.config.data import TokenizerKind
from mfsdp_trainer.config.performance import require_possible
from mfsdp_trainer.config.training import Precision

from . import rules
from .problems import InvalidSpecError, Problem, describe, problem
from .spec import JobSpec
from .template import env_values, has_own_program, mount_over, template_problems
from .template_shape import shape_problems


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
    """Resolve a well-formed spec.

    Raises InvalidSpecError with a line for every problem, each naming its field and the fix.
    """
    if problems := tuple(spec_problems(spec)):
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


def spec_problems(spec: JobSpec) -> Iterator[Problem]:
    """What is wrong with a spec beyond its fields' own types and bounds."""
    yield from _sharding_problems(spec)
    yield from _section_problems(spec)
    yield from _place_problems(spec)
    # Where a template is wrong in kind, the outline would only say so again.
    yield from tuple(template_problems(spec.template)) or shape_problems(spec.template)
    engine = spec.use_megatron_fsdp or spec.use_torch_fsdp2
    if engine and "1" in env_values(spec.template, rules.MAX_CONNECTIONS_ENV):
        yield problem("spec.template", rules.MAX_CONNECTIONS)


def _sharding_problems(spec: JobSpec) -> Iterator[Problem]:
    if spec.use_megatron_fsdp and not spec.gpus_per_node:
        yield problem("spec.useMegatronFSDP", rules.MEGATRON_NEEDS_GPUS)
    if spec.gpus_per_node and spec.resolved_procs_per_node > spec.gpus_per_node:
        yield problem("spec.procsPerNode", rules.PROCS_EXCEED_GPUS)
    # A program of the user's own may use several GPUs in a process.
    if spec.resolved_procs_per_node < spec.gpus_per_node and not has_own_program(spec.template):
        yield problem("spec.procsPerNode", rules.PROCS_BELOW_GPUS)
    try:
        sharding = _sharding(spec, spec.nodes * spec.resolved_procs_per_node)
    except ValueError as error:
        # Each of its messages starts with the field.
        yield problem(f"spec.{str(error).split()[0]}", str(error))
        return
    if spec.data_parallel_replicas > 1 and sharding.strategy is ShardingStrategy.NO_SHARD:
        yield problem("spec.dataParallelReplicas", rules.REPLICAS_NEED_SHARDS)
    elif spec.data_parallel_replicas > 1 and sharding.shard_size == 1:
        yield problem("spec.dataParallelReplicas", rules.REPLICAS_LEAVE_SHARDS)
    yield from _performance_problems(spec, sharding)


def _performance_problems(spec: JobSpec, sharding: ResolvedSharding) -> Iterator[Problem]:
    training = spec.training
    try:
        require_possible(
            spec.performance,
            sharding,
            gpu=spec.gpus_per_node > 0,
            bf16=training is None or training.precision is Precision.BF16,
            micro_batch_size=training.micro_batch_size if training else 1,
        )
    except ValueError as error:
        yield problem(f"spec.{str(error).split()[0]}", str(error))


def _section_problems(spec: JobSpec) -> Iterator[Problem]:
    if not has_own_program(spec.template):
        for section in rules.BUILT_IN_SECTIONS:
            if getattr(spec, section) is None:
                yield problem(f"spec.{section}", rules.SECTION_REQUIRED)
    if spec.model and spec.model.lora and spec.training and spec.training.freeze:
        yield problem("spec.training.freeze", rules.LORA_FREEZE)
    if spec.data is None:
        return
    tokenizer, model_path = spec.data.tokenizer, spec.model and spec.model.path
    if tokenizer.kind is TokenizerKind.HUGGING_FACE:
        if not (tokenizer.path or model_path):
            yield problem("spec.data.tokenizer.path", rules.TOKENIZER_PATH)
    elif tokenizer.path:
        yield problem("spec.data.tokenizer.path", rules.TOKENIZER_KIND)


def _place_problems(spec: JobSpec) -> Iterator[Problem]:
    path, pvc = spec.checkpoint.path, spec.checkpoint.pvc
    if not re.fullmatch(rules.RESOURCE_PATTERN, spec.gpu_resource):
        yield problem("spec.gpuResource", rules.RESOURCE_FORM)
    if not re.fullmatch(rules.PATH_PATTERN, path) or re.search(rules.DOTS_PATTERN, path):
        yield problem("spec.checkpoint.path", rules.PATH_FORM)
    elif re.search(rules.SYSTEM_PATTERN, path):
        yield problem("spec.checkpoint.path", rules.PATH_SYSTEM)
    if pvc is not None and not re.fullmatch(rules.PVC_PATTERN, pvc):
        yield problem("spec.checkpoint.pvc", rules.PVC_FORM)
    if pvc is not None and "://" in path:
        yield problem("spec.checkpoint.pvc", rules.PVC_NEEDS_DIRECTORY)
    elif pvc is not None and (mount := mount_over(spec.template, path)) is not None:
        yield problem("spec.checkpoint.pvc", rules.pvc_behind(mount))
    yield from _path_problems(spec)
    if spec.logging.port == rules.MASTER_PORT:
        yield problem("spec.logging.port", rules.PORT_TAKEN)


def _path_problems(spec: JobSpec) -> Iterator[Problem]:
    for section, name in rules.PATHS:
        holder: Any = spec
        for part in section.split("."):
            holder = holder and getattr(holder, part)
        path = holder and getattr(holder, to_snake(name))
        if path and not path.startswith("/"):
            yield problem(f"spec.{section}.{name}", f"{name} {rules.ABSOLUTE}")
    data = spec.data
    for field in ("sources", "validation") if data else ():
        for index, source in enumerate(getattr(data, field)):
            if source.path and not source.path.startswith("/"):
                yield problem(f"spec.data.{field}[{index}].path", f"path {rules.ABSOLUTE}")


def _sharding(spec: JobSpec, world_size: int) -> ResolvedSharding:
    """Engine, strategy and batch; a program that brings its own batch counts as one micro-batch."""
    training = spec.training
    return resolve_sharding(
        spec,
        world_size=world_size,
        micro_batch_size=training.micro_batch_size if training else 1,
        global_batch_size=training.global_batch_size if training else world_size,
        batch_ramp=training.batch_ramp if training else None,
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
        raise InvalidSpecError(describe(error, TrainerConfig, "spec")) from error
