"""How the model is optimised: length, batch, optimizer, schedule, precision."""

from enum import StrEnum

from pydantic import Field, model_validator

from .base import ConfigModel


class Precision(StrEnum):
    """Number format of the computation; master weights and reductions are fp32 always."""

    FP32 = "fp32"
    BF16 = "bf16"


class Schedule(StrEnum):
    """How the learning rate goes from its peak to minLearningRate."""

    COSINE = "cosine"
    CONSTANT = "constant"


class TrainingConfig(ConfigModel):
    """Length, batch, AdamW and its schedule."""

    steps: int = Field(ge=1, le=1_000_000_000)
    """Optimizer steps to train for."""
    global_batch_size: int = Field(ge=1, le=16_777_216)
    """Sequences in one optimizer step over all ranks; a multiple of microBatchSize x nodes x
    procsPerNode."""
    micro_batch_size: int = Field(default=1, ge=1, le=65_536)
    """Sequences that one rank computes at a time."""
    learning_rate: float = Field(default=3e-4, gt=0, le=10)
    """Peak learning rate."""
    min_learning_rate: float = Field(default=0.0, ge=0, le=10)
    """Learning rate at the end of the schedule."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Steps of linear warmup to the peak."""
    schedule: Schedule = Schedule.COSINE
    """Decay after warmup: cosine to minLearningRate at the last step, or constant."""
    weight_decay: float = Field(default=0.1, ge=0, le=10)
    """AdamW weight decay; biases and norms (parameters of fewer than two dimensions) are exempt."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW beta1."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW beta2."""
    adam_eps: float = Field(default=1e-8, gt=0, le=1)
    """AdamW epsilon."""
    clip_grad_norm: float = Field(default=1.0, ge=0, le=1e6)
    """Clip gradients to this global L2 norm; 0 turns clipping off."""
    precision: Precision = Precision.BF16
    """fp32, or bf16 compute over fp32 master weights with fp32 reductions."""
    seed: int = Field(default=1234, ge=0, le=4_294_967_295)
    """Seed of initial weights and data order."""
    eval_every_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Evaluate on held-out text every so many steps and at the end; 0: at the end only."""
    eval_sequences: int = Field(default=64, ge=1, le=1_000_000)
    """Held-out sequences an evaluation reads over all ranks (fewer if there are fewer)."""

    @model_validator(mode="after")
    def _ordered(self) -> "TrainingConfig":
        if self.min_learning_rate > self.learning_rate:
            raise ValueError("training.minLearningRate must not exceed training.learningRate")
        if self.warmup_steps > self.steps:
            raise ValueError("training.warmupSteps must not exceed training.steps")
        return self
