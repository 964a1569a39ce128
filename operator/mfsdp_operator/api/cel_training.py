"""CEL of `training` alone: length, warmup, decay, learning rates, what is of one optimizer."""

from typing import Final

from mfsdp_trainer.config.optimisation import (
    ADAM_BETAS,
    ADAM_EPS,
    BETAS_OF_ADAMW,
    CONSTANT_RATE,
    DECAY_FRACTION,
    MOMENTUM,
    MOMENTUM_OF_SGD,
)

from . import rules
from .cel_rule import Rule

_LENGTH: Final = "double(self.steps)"
SCHEDULE_RULES: Final = (
    Rule("training", "has(self.steps) != has(self.epochs)", rules.LENGTH),
    Rule(
        "training",
        "!has(self.steps) || self.warmupSteps <= self.steps",
        rules.WARMUP,
        "warmupSteps",
    ),
    Rule(
        "training",
        "self.warmupSteps == 0 || !has(self.warmupFraction)",
        rules.ONE_WARMUP,
        "warmupFraction",
    ),
    Rule(
        "training",
        "!has(self.decaySteps) || !has(self.decayFraction)",
        rules.ONE_DECAY,
        "decayFraction",
    ),
    Rule(
        "training",
        "self.schedule == 'wsd' || "
        "!(has(self.decaySteps) || has(self.decayFraction) || has(self.decayForm))",
        rules.DECAY_OF_WSD,
        "schedule",
    ),
    Rule(
        "training",
        "self.schedule != 'wsd' || !has(self.steps) || "
        f"(has(self.warmupFraction) ? self.warmupFraction * {_LENGTH} : double(self.warmupSteps))"
        " + (has(self.decaySteps) ? double(self.decaySteps) : "
        f"(has(self.decayFraction) ? self.decayFraction : {DECAY_FRACTION}) * {_LENGTH})"
        f" <= {_LENGTH} + 0.5",
        rules.WSD_ROOM,
        "schedule",
    ),
    Rule(
        "training",
        "self.minLearningRate <= self.learningRate",
        rules.MIN_LEARNING_RATE,
        "minLearningRate",
    ),
    Rule(
        "training",
        "self.schedule != 'constant' || self.minLearningRate == 0.0",
        CONSTANT_RATE,
        "minLearningRate",
    ),
    # Defaults are filled in before rules are asked: a value that is one cannot be told from none.
    Rule(
        "training",
        f"self.optimizer == 'sgd' || self.momentum == {MOMENTUM}",
        MOMENTUM_OF_SGD,
        "optimizer",
    ),
    Rule(
        "training",
        "self.optimizer == 'adamw' || "
        f"(self.adamBeta1 == {ADAM_BETAS[0]} && self.adamBeta2 == {ADAM_BETAS[1]} "
        f"&& self.adamEps == {ADAM_EPS})",
        BETAS_OF_ADAMW,
        "optimizer",
    ),
)
