"""How the model is optimised: length, batch, optimizer, schedule, precision."""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from pydantic import Field, model_validator

from .base import ConfigModel
from .batch import BatchRamp, batch_at, steps_until
from .optimisation import (
    ADAM_BETAS,
    ADAM_EPS,
    BETAS_OF_ADAMW,
    CONSTANT_RATE,
    DECAY_FRACTION,
    MOMENTUM,
    MOMENTUM_OF_SGD,
    DecayForm,
    NamePattern,
    OptimizerKind,
    Schedule,
)


class Precision(StrEnum):
    """Number format of the computation; master weights and reductions are fp32 always."""

    FP32 = "fp32"
    BF16 = "bf16"


class Recompute(StrEnum):
    """What of a decoder layer's forward pass is thrown away and computed again for its backward."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class TrainingConfig(ConfigModel):
    """Length, batch, optimizer and its schedule."""

    steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Optimizer steps to train for; exactly one of steps and epochs."""
    epochs: float | None = Field(default=None, gt=0, le=1_000_000)
    """Passes over the training data, e.g. 3 or 0.5, rounded up to whole steps: known when the data
    is, and shown in status as totalSteps."""
    global_batch_size: int = Field(ge=1, le=16_777_216)
    """Sequences in one optimizer step over all ranks; a multiple of microBatchSize x nodes x
    procsPerNode."""
    batch_ramp: BatchRamp | None = None
    """Start with smaller global batches; unset: globalBatchSize from the first step."""
    micro_batch_size: int = Field(default=1, ge=1, le=65_536)
    """Sequences that one rank computes at a time."""
    learning_rate: float = Field(default=3e-4, gt=0, le=10)
    """Peak learning rate."""
    min_learning_rate: float = Field(default=0.0, ge=0, le=10)
    """Learning rate at the end of the schedule."""
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Steps of linear warmup to the peak."""
    warmup_fraction: float | None = Field(default=None, ge=0, le=1)
    """In place of warmupSteps: share of all steps."""
    schedule: Schedule = Schedule.COSINE
    """After warmup. cosine, linear: fall to minLearningRate at the last step. inverse_sqrt: peak x
    sqrt(warmup / step), not below minLearningRate. wsd (warmup, stable, decay): the peak, and a
    fall to minLearningRate in the last steps. constant: the peak."""
    decay_steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """wsd: how many of the last steps decay."""
    decay_fraction: float | None = Field(default=None, gt=0, le=1)
    """wsd, in place of decaySteps: share of all steps; unset: 0.1."""
    decay_form: DecayForm | None = None
    """wsd: linear, cosine or sqrt (1 - sqrt of the share decayed, which falls fast first); unset:
    linear."""
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    """adamw, or sgd with momentum. A run goes on with the optimizer that it began with."""
    weight_decay: float = Field(default=0.1, ge=0, le=10)
    """Weight decay (adamw: decoupled; sgd: added to the gradient). Biases and norms (parameters of
    fewer than two dimensions) are exempt; embeddings are not."""
    adam_beta1: float = Field(default=ADAM_BETAS[0], ge=0, lt=1)
    """AdamW beta1."""
    adam_beta2: float = Field(default=ADAM_BETAS[1], ge=0, lt=1)
    """AdamW beta2."""
    adam_eps: float = Field(default=ADAM_EPS, gt=0, le=1)
    """AdamW epsilon."""
    momentum: float = Field(default=MOMENTUM, ge=0, lt=1)
    """SGD momentum; 0 needs no memory beside the weights."""
    freeze: tuple[NamePattern, ...] = Field(default=(), max_length=64)
    """Parameters that are not trained: Python regular expressions, each looked for in the names,
    e.g. ^model[.]embed_tokens or layers[.][0-7][.]. They have no optimizer state and no fp32
    masters: under bf16 they are held, saved and exported as bf16. A pattern that meets no
    parameter is an error."""
    clip_grad_norm: float = Field(default=1.0, ge=0, le=1e6)
    """Clip gradients to this global L2 norm; 0 turns clipping off."""
    precision: Precision = Precision.BF16
    """fp32, or bf16 compute over fp32 master weights with fp32 reductions."""
    recompute: Recompute = Recompute.NONE
    """Activations to compute again in the backward pass, to save memory: none, selective (keep
    matrix products and attention, compute the rest again) or full (keep a layer's input alone).
    The numbers stay the same."""
    seed: int = Field(default=1234, ge=0, le=4_294_967_295)
    """Seed of initial weights and data order."""
    eval_every_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Evaluate on held-out text every so many steps and at the end; 0: at the end only."""
    eval_sequences: int = Field(default=64, ge=1, le=1_000_000)
    """Held-out sequences an evaluation reads over all ranks (fewer if there are fewer)."""

    deterministic: bool = False
    """true: GPUs use deterministic algorithms only, slower: two runs on as many processes are
    equal to the bit, as they always are on CPUs. An operation that has none ends the run with its
    name."""

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        broken = next((words for holds, words in _RULES if not holds(self)), None)
        if broken is not None:
            raise ValueError(broken)
        return self

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run: given, or settled when the data was known."""
        assert self.steps is not None, "epochs become steps in settled()"
        return self.steps

    @property
    def warmup(self) -> int:
        """Steps of warmup in effect."""
        return round(_warmup(self, self.total_steps))

    @property
    def decay(self) -> int:
        """wsd: last steps that decay, in effect; at least 1."""
        return max(1, round(_decay(self, self.total_steps)))

    def batch_after(self, consumed: int) -> int:
        """Sequences of the step after `consumed` ones, over all ranks."""
        return batch_at(self.global_batch_size, self.batch_ramp, consumed)

    def passes(self, step: int, consumed: int) -> bool:
        """Whether a run with these global batches has consumed so many sequences after `step`."""
        # One sequence more takes one step more exactly where a step ended.
        full, ramp = self.global_batch_size, self.batch_ramp
        return [steps_until(full, ramp, consumed + more) for more in (0, 1)] == [step, step + 1]

    def settled(self, sequences: int) -> "TrainingConfig":
        """The same with epochs of that many sequences as steps, so that each is seen.

        Raises ValueError where warmup or decay do not fit into them.
        """
        if self.epochs is None:
            return self
        wanted = math.ceil(self.epochs * sequences)
        steps = steps_until(self.global_batch_size, self.batch_ramp, wanted)
        given = self.model_dump(exclude={"epochs", "steps"}, exclude_unset=True)
        return TrainingConfig(**given, steps=steps)


def _warmup(training: TrainingConfig, steps: int) -> float:
    if training.warmup_fraction is None:
        return training.warmup_steps
    return training.warmup_fraction * steps


def _decay(training: TrainingConfig, steps: int) -> float:
    if training.decay_steps is not None:
        return training.decay_steps
    return (training.decay_fraction or DECAY_FRACTION) * steps


def _has_room(training: TrainingConfig) -> bool:
    """Whether warmup and decay of wsd fit beside each other, if the length is known."""
    if training.schedule is not Schedule.WSD or training.steps is None:
        return True
    # Fractions are not exact; what is rounded to a step too many is cut by the schedule.
    return _warmup(training, training.steps) + _decay(training, training.steps) <= (
        training.steps + 0.5
    )


def _ramp_is_even(training: TrainingConfig) -> bool:
    ramp = training.batch_ramp
    rest = training.global_batch_size - ramp.start if ramp else 0
    return ramp is None or (rest > 0 and rest % ramp.increment == 0)


_RULES: Final[tuple[tuple[Callable[[TrainingConfig], bool], str], ...]] = (
    (
        lambda t: (t.steps is None) != (t.epochs is None),
        "set exactly one of training.steps and training.epochs",
    ),
    (
        lambda t: t.min_learning_rate <= t.learning_rate,
        "training.minLearningRate must not exceed training.learningRate",
    ),
    (
        lambda t: t.schedule is not Schedule.CONSTANT or not t.min_learning_rate,
        CONSTANT_RATE,
    ),
    (
        lambda t: t.steps is None or t.warmup_steps <= t.steps,
        "training.warmupSteps must not exceed training.steps",
    ),
    (
        lambda t: not t.warmup_steps or t.warmup_fraction is None,
        "set at most one of training.warmupSteps and training.warmupFraction",
    ),
    (
        lambda t: t.decay_steps is None or t.decay_fraction is None,
        "set at most one of training.decaySteps and training.decayFraction",
    ),
    (
        lambda t: (
            t.schedule is Schedule.WSD
            or (t.decay_steps, t.decay_fraction, t.decay_form) == (None, None, None)
        ),
        "training.decaySteps, decayFraction and decayForm are of schedule wsd: set it, or drop "
        "them",
    ),
    (
        _has_room,
        "training.schedule wsd: warmup and decay together must not exceed training.steps: shorten "
        "one of them",
    ),
    # The same as in the CRD, which cannot tell a default from a wish for it.
    (
        lambda t: t.optimizer is OptimizerKind.SGD or t.momentum == MOMENTUM,
        MOMENTUM_OF_SGD,
    ),
    (
        lambda t: (
            t.optimizer is OptimizerKind.ADAMW
            or (t.adam_beta1, t.adam_beta2, t.adam_eps) == (*ADAM_BETAS, ADAM_EPS)
        ),
        BETAS_OF_ADAMW,
    ),
    (
        _ramp_is_even,
        "training.batchRamp.start must be below training.globalBatchSize by a multiple of "
        "training.batchRamp.increment",
    ),
)
