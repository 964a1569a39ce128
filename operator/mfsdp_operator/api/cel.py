"""The CRD's validation rules (CEL): each names its place, so `kubectl apply` points at the field.

Rules stand at `spec` or below, never at the root (but for the name): an upgrade that tightens a
rule must let running jobs' status be written, and the API server only forgives old failures below
the root. A section that is absent becomes {} before its fields get their defaults, and rules are
asked of that too: hence has(). Divisors are guarded and numbers bounded, because a field that
violates its minimum is still evaluated.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from mfsdp_trainer.config import checkpoint, data, logs, performance
from mfsdp_trainer.contract import CONTAINER_NAME

from . import rules
from .cel_rule import Rule
from .cel_training import SCHEDULE_RULES
from .names import (
    CHECKPOINT_VOLUME,
    LABEL_MANAGED_BY,
    MAX_JOB_NAME,
    MAX_NODES,
    RESERVED_LABEL_PREFIX,
)
from .refused import REFUSED

_ENGINE: Final = "(self.useMegatronFSDP || self.useTorchFSDP2)"
_NOT_UNSHARDED: Final = (
    "!has(self.dataParallelShardingStrategy) || self.dataParallelShardingStrategy != 'no_shard'"
)
_PROCS: Final = (
    "(has(self.procsPerNode) ? self.procsPerNode : self.gpusPerNode > 0 ? self.gpusPerNode : 1)"
)
_WORLD: Final = f"self.nodes * {_PROCS}"
_OUT_OF_BOUNDS: Final = (
    f"self.nodes < 1 || self.nodes > {MAX_NODES} || {_PROCS} < 1 || {_PROCS} > 256"
)
_CONTAINERS: Final = (
    "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"
    f" && self.template.spec.containers.exists(c, c.name == '{CONTAINER_NAME}' && "
)
_OWN_PROGRAM: Final = f"({_CONTAINERS} has(c.command) && size(c.command) > 0))"


NAME_RULES: Final = (
    Rule("", f"size(self.metadata.name) <= {MAX_JOB_NAME}", rules.NAME_LENGTH, "metadata.name"),
    Rule(
        "", f"self.metadata.name.matches('{rules.NAME_PATTERN}')", rules.NAME_FORM, "metadata.name"
    ),
)

_SHARDING_RULES: Final = (
    Rule("", "!(self.useMegatronFSDP && self.useTorchFSDP2)", rules.EXCLUSIVE, "useMegatronFSDP"),
    Rule(
        "",
        "!has(self.dataParallelShardingStrategy) || self.dataParallelShardingStrategy == 'no_shard'"
        f" || {_ENGINE}",
        f"dataParallelShardingStrategy {rules.STRATEGY_WITHOUT_ENGINE}",
        "dataParallelShardingStrategy",
        expression="'dataParallelShardingStrategy ' + self.dataParallelShardingStrategy + "
        f"' {rules.STRATEGY_WITHOUT_ENGINE}'",
    ),
    Rule(
        "",
        "!self.useMegatronFSDP || self.gpusPerNode != 0",
        rules.MEGATRON_NEEDS_GPUS,
        "useMegatronFSDP",
    ),
    Rule(
        "",
        f"{_OUT_OF_BOUNDS} || self.dataParallelReplicas < 1 || "
        f"({_WORLD}) % self.dataParallelReplicas == 0",
        f"dataParallelReplicas {rules.REPLICAS_DIVIDE} (nodes x procsPerNode)",
        "dataParallelReplicas",
        expression=f"'dataParallelReplicas %d {rules.REPLICAS_DIVIDE} %d (nodes x procsPerNode)'"
        f".format([self.dataParallelReplicas, {_WORLD}])",
    ),
    Rule(
        "",
        f"self.dataParallelReplicas <= 1 || {_ENGINE}",
        rules.REPLICAS_NEED_ENGINE,
        "dataParallelReplicas",
    ),
    Rule(
        "",
        f"self.dataParallelReplicas <= 1 || !{_ENGINE} || {_NOT_UNSHARDED}",
        rules.REPLICAS_NEED_SHARDS,
        "dataParallelReplicas",
    ),
    Rule(
        "",
        f"{_OUT_OF_BOUNDS} || self.dataParallelReplicas <= 1 || !{_ENGINE} || "
        f"self.dataParallelReplicas != {_WORLD}",
        rules.REPLICAS_LEAVE_SHARDS,
        "dataParallelReplicas",
    ),
    Rule(
        "",
        "self.gpusPerNode == 0 || !has(self.procsPerNode) || self.procsPerNode <= self.gpusPerNode",
        rules.PROCS_EXCEED_GPUS,
        "procsPerNode",
    ),
    Rule(
        "",
        f"!has(self.procsPerNode) || self.procsPerNode >= self.gpusPerNode || {_OWN_PROGRAM}",
        rules.PROCS_BELOW_GPUS,
        "procsPerNode",
    ),
)

_MICRO: Final = "self.training.microBatchSize"
_GLOBAL: Final = "self.training.globalBatchSize"
_RAMP: Final = "self.training.batchRamp"
_BATCH_RULES: Final = (
    Rule(
        "",
        f"!has(self.training) || {_OUT_OF_BOUNDS} || {_MICRO} < 1 || {_MICRO} > 65536 || "
        f"{_GLOBAL} % ({_MICRO} * {_WORLD}) == 0",
        f"training.globalBatchSize {rules.BATCH_MULTIPLE}",
        "training.globalBatchSize",
        expression=f"'training.globalBatchSize %d {rules.BATCH_MULTIPLE} = %d x %d = %d'"
        f".format([{_GLOBAL}, {_MICRO}, {_WORLD}, {_MICRO} * {_WORLD}])",
    ),
    Rule(
        "",
        f"!has(self.training) || !has({_RAMP}) || {_OUT_OF_BOUNDS} || {_MICRO} < 1 || "
        f"{_MICRO} > 65536 || ({_RAMP}.start % ({_MICRO} * {_WORLD}) == 0 && "
        f"{_RAMP}.increment % ({_MICRO} * {_WORLD}) == 0)",
        f"training.batchRamp.start and increment {rules.RAMP_MULTIPLE}",
        "training.batchRamp.start",
        expression=f"'training.batchRamp.start %d and increment %d {rules.RAMP_MULTIPLE} = "
        f"%d x %d = %d'.format([{_RAMP}.start, {_RAMP}.increment, {_MICRO}, {_WORLD}, "
        f"{_MICRO} * {_WORLD}])",
    ),
    Rule(
        "training",
        "!has(self.batchRamp) || self.batchRamp.increment < 1 || "
        "(self.batchRamp.start < self.globalBatchSize && "
        "(self.globalBatchSize - self.batchRamp.start) % self.batchRamp.increment == 0)",
        rules.RAMP_EVEN,
        "batchRamp",
    ),
)

_ATTENTION: Final = "self.performance.attention"
_FLASH: Final = f"!has({_ATTENTION}) || {_ATTENTION} != 'flash_attention_2'"
_PERFORMANCE_RULES: Final = tuple(
    Rule("", condition, message, f"performance.{field}")
    for condition, message, field in (
        (f"{_FLASH} || self.gpusPerNode != 0", performance.FLASH_NEEDS_GPUS, "attention"),
        (
            f"!has({_ATTENTION}) || {_ATTENTION} != 'flex_attention' || self.gpusPerNode != 0",
            performance.FLEX_NEEDS_GPUS,
            "attention",
        ),
        (
            f"{_FLASH} || !has(self.training) || self.training.precision == 'bf16'",
            performance.FLASH_NEEDS_BF16,
            "attention",
        ),
        (
            f"{_FLASH} || !has(self.training) || {_MICRO} <= 1",
            performance.FLASH_NEEDS_ONE,
            "attention",
        ),
        (
            "self.performance.prefetchLayers == 0 || self.useTorchFSDP2",
            performance.PREFETCH_NEEDS_FSDP2,
            "prefetchLayers",
        ),
        (
            "!self.performance.separateGatherGroup || self.useMegatronFSDP",
            performance.GATHER_GROUP_NEEDS_MEGATRON,
            "separateGatherGroup",
        ),
        (
            "(self.performance.prefetchLayers == 0 && !self.performance.separateGatherGroup) || "
            f"{_NOT_UNSHARDED}",
            performance.GATHERS_NEED_SHARDS,
            "prefetchLayers",
        ),
        (
            "!(self.performance.doubleBuffer || self.performance.ncclUserBuffers) || "
            "(self.useMegatronFSDP && (!has(self.dataParallelShardingStrategy) || "
            "self.dataParallelShardingStrategy == 'optim_grads_params'))",
            performance.BUFFERS_NEED_MEGATRON,
            "doubleBuffer",
        ),
    )
)


_RECORDS: Final = str([*data.RECORDS])
_DEFAULT_TEXT: Final = f"self.textField == '{data.TEXT_FIELD}'"
_DEFAULT_CHAT: Final = f"self.messagesField == '{data.MESSAGES_FIELD}'"
_DEFAULT_TOKENS: Final = f"self.tokensField == '{data.TOKENS_FIELD}'"


def _source_rules(where: str) -> Iterator[Rule]:
    """The rules of one source of data."""
    yield Rule(where, "has(self.path) != has(self.builtin)", rules.DATA_SOURCE)
    yield Rule(where, "!has(self.builtin) || self.format == 'text'", rules.DATA_BUILTIN)
    yield Rule(
        where,
        f"self.content == 'text' || self.format in {_RECORDS}",
        rules.DATA_CONTENT,
    )
    yield Rule(
        where,
        f"self.format in {_RECORDS} || ({_DEFAULT_TEXT} && {_DEFAULT_CHAT} && {_DEFAULT_TOKENS})",
        data.DATA_FIELDS,
    )
    yield Rule(
        where,
        f"!(self.format in {_RECORDS}) || ((self.content == 'text' || {_DEFAULT_TEXT}) && "
        f"(self.content == 'chat' || {_DEFAULT_CHAT}) && "
        f"(self.content == 'tokens' || {_DEFAULT_TOKENS}))",
        data.DATA_FIELD,
    )
    yield Rule(
        where,
        "self.format != 'text' || !has(self.path) || "
        "!(self.path.endsWith('.jsonl') || self.path.endsWith('.parquet'))",
        f"path {rules.DATA_SUFFIX} jsonl or parquet",
        expression="self.path + (self.path.endsWith('.jsonl') ? "
        f"' {rules.DATA_SUFFIX} jsonl' : ' {rules.DATA_SUFFIX} parquet')",
    )
    yield Rule(where, "!has(self.path) || self.path.startsWith('/')", f"path {rules.ABSOLUTE}")
    yield Rule(where, "!has(self.split) || self.format == 'arrow'", rules.DATA_SPLIT)


_SOURCE_RULES: Final = (
    Rule("model", "has(self.path) != has(self.config)", rules.MODEL_SOURCE),
    *(rule for where in ("data.sources[]", "data.validation[]") for rule in _source_rules(where)),
    Rule(
        "data",
        "self.sources.all(s, has(s.weight)) || self.sources.all(s, !has(s.weight))",
        rules.DATA_WEIGHTS,
        "sources",
    ),
    Rule(
        "data",
        "!has(self.validation) || self.validation.all(s, !has(s.weight))",
        rules.VALIDATION_WEIGHT,
        "validation",
    ),
    Rule(
        "data",
        "!has(self.cachePath) || !self.cachePath.contains('://')",
        data.CACHE_PATH,
        "cachePath",
    ),
    Rule(
        "model",
        "!has(self.lora) || (has(self.path) && !self.randomInit)",
        rules.LORA_BASE,
        "lora",
    ),
    Rule(
        "",
        "!has(self.model) || !has(self.model.lora) || !has(self.training) || "
        "!has(self.training.freeze) || size(self.training.freeze) == 0",
        rules.LORA_FREEZE,
        "training.freeze",
    ),
    Rule(
        "",
        "!has(self.data) || self.data.tokenizer.kind != 'huggingface' || "
        "has(self.data.tokenizer.path) || (has(self.model) && has(self.model.path))",
        rules.TOKENIZER_PATH,
        "data.tokenizer.path",
        "FieldValueRequired",
    ),
    Rule(
        "data.tokenizer",
        "!has(self.path) || self.kind == 'huggingface'",
        rules.TOKENIZER_KIND,
        "path",
    ),
    Rule(
        "data.tokenizer",
        f"!has(self.vocabSize) || self.vocabSize == {data.BPE_SIZE} || self.kind == 'bpe'",
        data.SIZE_OF_BPE,
        "vocabSize",
    ),
)

_MOUNT_PATH: Final = (
    "(m.mountPath.endsWith('/') ? m.mountPath.substring(0, size(m.mountPath) - 1) : m.mountPath)"
)
_PLACE_RULES: Final = (
    *(
        Rule(
            parent,
            f"!has(self.{name}) || self.{name}.startsWith('/')",
            f"{name} {rules.ABSOLUTE}",
            name,
        )
        for parent, name in rules.PATHS
    ),
    Rule("gpuResource", f"self.matches('{rules.RESOURCE_PATTERN}')", rules.RESOURCE_FORM),
    Rule("checkpoint.pvc", f"self.matches('{rules.PVC_PATTERN}')", rules.PVC_FORM),
    Rule(
        "checkpoint",
        "!has(self.pvc) || self.path.startsWith('/')",
        f"pvc {rules.PVC_NEEDS_DIRECTORY}",
        "pvc",
    ),
    Rule(
        "",
        f"!has(self.checkpoint.pvc) || !({_CONTAINERS} has(c.volumeMounts) && "
        f"c.volumeMounts.exists(m, has(m.mountPath) && "
        f"!(has(m.name) && m.name == '{CHECKPOINT_VOLUME}') && "
        f"(self.checkpoint.path == {_MOUNT_PATH} || "
        f"self.checkpoint.path.startsWith({_MOUNT_PATH} + '/')))))",
        f"checkpoint.pvc: {rules.pvc_behind('a directory')}",
        "checkpoint.pvc",
    ),
    Rule(
        "checkpoint.path",
        f"self.matches('{rules.PATH_PATTERN}') && !self.matches('{rules.DOTS_PATTERN}')",
        rules.PATH_FORM,
    ),
    Rule(
        "checkpoint",
        "!has(self.keepBest) || self.keepBest == 0 || self.everySteps > 0",
        checkpoint.BEST_OF_SOME,
        "keepBest",
    ),
    Rule(
        "",
        "!has(self.logging.wandb) || self.logging.wandb.mode != 'offline' || "
        "self.checkpoint.path.startsWith('/')",
        logs.OFFLINE_BESIDE,
        "logging.wandb.mode",
    ),
    Rule("checkpoint.path", f"!self.matches('{rules.SYSTEM_PATTERN}')", rules.PATH_SYSTEM),
    Rule(
        "",
        "!has(self.logging.profile) || !has(self.training) || !has(self.training.steps) || "
        "self.logging.profile.startStep + self.logging.profile.steps <= self.training.steps + 1",
        logs.PROFILE_END,
        "logging.profile.startStep",
    ),
    Rule("logging.port", f"self != {rules.MASTER_PORT}", rules.PORT_TAKEN),
)

_TEMPLATE_RULES: Final = (
    Rule(
        "",
        f"!{_ENGINE} || !({_CONTAINERS} has(c.env) && c.env.exists(e, "
        f"e.name == '{rules.MAX_CONNECTIONS_ENV}' && has(e.value) && e.value == '1')))",
        rules.MAX_CONNECTIONS,
        "template",
    ),
    Rule(
        "template.metadata.labels",
        f"self.all(k, !k.startsWith('{RESERVED_LABEL_PREFIX}') && k != '{LABEL_MANAGED_BY}')",
        rules.RESERVED_LABEL,
    ),
    *(
        Rule("template.spec", f"!has(self.{field})", f"{field} {rules.RESERVED_FIELD}", field)
        for field in rules.RESERVED_POD_FIELDS
    ),
)


def spec_rules(fields: Iterable[str]) -> Iterator[Rule]:
    """All rules of a spec with these top-level fields; paths are relative to `spec`."""
    yield from (
        Rule(parent, f"!has(self.{name})", rules.misspelt(name, write), name)
        for parent, name, _, write in REFUSED
    )
    yield from _SHARDING_RULES
    yield from _BATCH_RULES
    yield from SCHEDULE_RULES
    yield from _PERFORMANCE_RULES
    for section in rules.BUILT_IN_SECTIONS:
        rule = f"has(self.{section}) || {_OWN_PROGRAM}"
        yield Rule("", rule, rules.SECTION_REQUIRED, section, "FieldValueRequired")
    yield from _SOURCE_RULES
    yield from _PLACE_RULES
    yield from _TEMPLATE_RULES
    for field in fields:
        if field not in rules.MUTABLE_FIELDS:
            yield Rule("", _unchanged(field), rules.immutable(field), field)


def _unchanged(field: str) -> str:
    # has() on both sides: comparing the field alone would miss that it was added or removed.
    mine, old = f"self.{field}", f"oldSelf.{field}"
    return f"has({mine}) == has({old}) && (!has({mine}) || {mine} == {old})"
