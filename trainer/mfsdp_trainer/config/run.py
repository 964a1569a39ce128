"""`TrainerConfig`: all that one run needs to know, as `mfsdp-train --config FILE` reads it."""

from pydantic import Field, model_validator

from .checkpoint import CheckpointConfig
from .data import DataConfig
from .hang import HangConfig
from .logs import OFFLINE_BESIDE, PROFILE_END, LoggingConfig, WandbMode
from .model import ModelConfig
from .performance import PerformanceConfig, require_possible
from .sharding import ResolvedSharding, ShardingFields, resolve_sharding
from .training import Precision, TrainingConfig


class TrainerConfig(ShardingFields):
    """One run of the built-in trainer. The operator writes `nodes` and `procsPerNode` resolved."""

    nodes: int = Field(default=1, ge=1, le=16_384)
    """Pods of the gang; each runs procsPerNode processes."""
    procs_per_node: int = Field(default=1, ge=1, le=256)
    """Processes in each pod."""
    gpus_per_node: int = Field(default=0, ge=0, le=256)
    """GPUs of each pod; 0: train on the CPU over gloo."""
    model: ModelConfig
    """The model to train."""
    data: DataConfig
    """The text to train on."""
    training: TrainingConfig
    """Length, batch, optimizer, schedule, precision."""
    performance: PerformanceConfig = PerformanceConfig()
    """Choices that cost or save time and memory."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints and the exported model."""
    logging: LoggingConfig = LoggingConfig()
    """Log lines, the HTTP endpoint, and where the numbers go beside them."""
    hang: HangConfig = HangConfig()
    """How long each phase may be silent before it counts as hung."""

    @model_validator(mode="after")
    def _resolvable(self) -> "TrainerConfig":
        if self.gpus_per_node and self.procs_per_node > self.gpus_per_node:
            raise ValueError(
                "procsPerNode must not exceed gpusPerNode: each process needs a GPU of its own"
            )
        if self.model.lora is not None and self.training.freeze:
            raise ValueError(
                "training.freeze and model.lora exclude each other: with lora adapters alone are "
                "trained; drop one of them"
            )
        sharding = self.resolve()
        require_possible(
            self.performance,
            sharding,
            gpu=self.gpus_per_node > 0,
            bf16=self.training.precision is Precision.BF16,
            micro_batch_size=self.training.micro_batch_size,
        )
        profile, steps = self.logging.profile, self.training.steps
        if profile is not None and steps is not None and profile.last_step > steps:
            raise ValueError(PROFILE_END)
        wandb = self.logging.wandb
        if wandb and wandb.mode is WandbMode.OFFLINE and "://" in self.checkpoint.path:
            raise ValueError(OFFLINE_BESIDE)
        return self

    @property
    def world_size(self) -> int:
        """Processes in the gang."""
        return self.nodes * self.procs_per_node

    def resolve(self) -> ResolvedSharding:
        """Engine, strategy, world size and micro-batches in effect. Raises ValueError naming field
        and fix."""
        return resolve_sharding(
            self,
            world_size=self.world_size,
            micro_batch_size=self.training.micro_batch_size,
            global_batch_size=self.training.global_batch_size,
            batch_ramp=self.training.batch_ramp,
        )
