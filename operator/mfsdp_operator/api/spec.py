"""`spec` of a MegatronFSDPJob: the trainer's own fields, and what the operator needs beside
them."""

from typing import Any, Final

from pydantic import Field

from mfsdp_trainer.config import (
    CheckpointConfig,
    ConfigModel,
    DataConfig,
    HangConfig,
    LoggingConfig,
    ModelConfig,
    PerformanceConfig,
    ShardingFields,
    TrainingConfig,
)

from .names import MAX_NODES

DEFAULT_GPU_RESOURCE: Final = "nvidia.com/gpu"


class JobCheckpoint(CheckpointConfig):
    """Checkpoints and the exported model, and the volume that holds them."""

    pvc: str | None = Field(default=None, min_length=1, max_length=253)
    """PersistentVolumeClaim mounted at checkpoint.path in every pod; ReadWriteMany with more than
    one node. Without
    it (and without a volume of your own in template) checkpoints live in the pod and are lost with
    it."""


class RestartPolicy(ConfigModel):
    """How often the gang is started again after a failure."""

    max_restarts: int = Field(default=3, ge=0, le=998)
    """Failures of the program that are answered with a new attempt; one more fails the job."""
    max_disruption_restarts: int = Field(default=100, ge=0, le=900)
    """Disruptions (evictions, lost nodes, deleted pods) that are answered with a new attempt."""


class JobSpec(ShardingFields):
    """What a user writes."""

    nodes: int = Field(default=1, ge=1, le=MAX_NODES)
    """Pods of the gang, one to a node rank."""
    gpus_per_node: int = Field(default=1, ge=0, le=256)
    """GPUs of each pod, requested as gpuResource; 0: train on the CPU over gloo."""
    procs_per_node: int | None = Field(default=None, ge=1, le=256)
    """Processes in each pod; unset: gpusPerNode, or 1 without GPUs."""
    gpu_resource: str = Field(default=DEFAULT_GPU_RESOURCE, min_length=1, max_length=317)
    """Extended resource that gpusPerNode is requested as; without effect where that is 0."""
    model: ModelConfig | None = None
    """The model to train. Required unless template gives the trainer container a command of its
    own, which does not read it."""
    data: DataConfig | None = None
    """The text to train on. Required unless template gives the trainer container a command of its
    own, which does not read it."""
    training: TrainingConfig | None = None
    """Length, batch, optimizer. Required unless template gives the trainer container a command of
    its own, which does not read it."""
    performance: PerformanceConfig = PerformanceConfig()
    """Choices of the built-in trainer that cost or save time and memory."""
    checkpoint: JobCheckpoint = JobCheckpoint()
    """Checkpoints and the exported model. A program of your own is told path and finds pvc there;
    the other fields are the built-in trainer's."""
    logging: LoggingConfig = LoggingConfig()
    """Log lines and the HTTP endpoint of the built-in trainer, and where its numbers go."""
    hang: HangConfig = HangConfig()
    """How long each phase of the built-in trainer may be silent before it counts as hung."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Pod template (metadata.labels, metadata.annotations, spec) laid over the operator's own. Its
    container named
    trainer is merged with ours; a command there runs your own program in place of the built-in
    trainer."""
    suspend: bool = False
    """true: delete the pods (after a checkpoint) and keep the job; false again: go on."""
    restarts: RestartPolicy = RestartPolicy()
    """How often the gang is started again."""

    @property
    def resolved_procs_per_node(self) -> int:
        """procsPerNode in effect."""
        return self.procs_per_node or self.gpus_per_node or 1
