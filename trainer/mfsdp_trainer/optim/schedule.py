"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.config.optimisation import DecayForm, Schedule

_HEIGHTS: Final[Mapping[DecayForm, Callable[[float], float]]] = {
    DecayForm.LINEAR: lambda done: 1.0 - done,
    DecayForm.COSINE: lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    DecayForm.SQRT: lambda done: 1.0 - math.sqrt(done),
}
"""From the share of a decay that is done to the share of the way down that is left."""


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    Linear warmup reaches the peak with the last warmup step. Cosine, linear and wsd are at
    minLearningRate with the last step of the run, and stay there.
    """
    warmup, peak = config.warmup, config.learning_rate
    if step < warmup:
        return peak * (step + 1) / warmup
    match config.schedule:
        case Schedule.CONSTANT:
            return peak
        case Schedule.INVERSE_SQRT:
            fallen = peak * math.sqrt(max(warmup, 1) / (step + 1))
            return max(config.min_learning_rate, fallen)
        case Schedule.WSD:
            # The first step of the decay is a part of the way down already.
            stable = max(warmup, config.total_steps - config.decay)
            done = (step + 1 - stable) / max(1, config.total_steps - stable)
            return _between(config, config.decay_form or DecayForm.LINEAR, done)
        case Schedule.COSINE | Schedule.LINEAR:
            done = (step - warmup) / max(1, config.total_steps - 1 - warmup)
            return _between(config, DecayForm(config.schedule.value), done)


def _between(config: TrainingConfig, form: DecayForm, done: float) -> float:
    height = _HEIGHTS[form](min(max(done, 0.0), 1.0))
    return config.min_learning_rate + height * (config.learning_rate - config.min_learning_rate)
