"""Names that people type for ours, refused with the right name.

Helm and GitOps tools drop unknown fields without a word, so `use_megatron_fsdp: true` would train a
plain DDP run. Declared here, such a name reaches the API server, where a rule refuses it. The names
are those of Megatron-LM, ms-swift, Hugging Face and torchrun that would change a run silently; all
other unknown fields are left to kubectl's strict validation.
"""

from typing import Final, NamedTuple


class Refused(NamedTuple):
    """A wrong name in an object of the spec: its value's JSON type, and what to write instead."""

    parent: str
    name: str
    type: str
    write: str


_SHARDING = {
    "use_megatron_fsdp": ("boolean", "useMegatronFSDP"),
    "useMegatronFsdp": ("boolean", "useMegatronFSDP"),
    "use_torch_fsdp2": ("boolean", "useTorchFSDP2"),
    "useTorchFsdp2": ("boolean", "useTorchFSDP2"),
    "data_parallel_sharding_strategy": ("string", "dataParallelShardingStrategy"),
    "data_parallel_replicas": ("integer", "dataParallelReplicas"),
    "gpus_per_node": ("integer", "gpusPerNode"),
    "procs_per_node": ("integer", "procsPerNode"),
    "nproc_per_node": ("integer", "procsPerNode"),
    "nnodes": ("integer", "nodes"),
}
_TRAINING = {
    "micro_batch_size": ("integer", "microBatchSize"),
    "learning_rate": ("number", "learningRate"),
    "lr": ("number", "learningRate"),
    "min_lr": ("number", "minLearningRate"),
    "warmup_steps": ("integer", "warmupSteps"),
    "weight_decay": ("number", "weightDecay"),
    "clip_grad": ("number", "clipGradNorm"),
}
_OTHER = {
    "data": {"sequence_length": ("integer", "sequenceLength")},
    "checkpoint": {"every_steps": ("integer", "everySteps")},
}

REFUSED: Final = tuple(
    Refused(parent, name, kind, write)
    for parent, names in {"": _SHARDING, "training": _TRAINING, **_OTHER}.items()
    for name, (kind, write) in names.items()
)
RIGHT_NAMES: Final = {(entry.parent, entry.name): entry.write for entry in REFUSED}
