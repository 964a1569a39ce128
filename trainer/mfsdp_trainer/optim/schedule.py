"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math

from mfsdp_trainer.config import TrainingConfig
from mfsdp_trainer.config.training import Schedule


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    Linear warmup reaches the peak with the last warmup step; the cosine ends at minLearningRate
    with the last step of the run.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule is Schedule.CONSTANT:
        return config.learning_rate
    span = max(1, config.steps - 1 - config.warmup_steps)
    done = (step - config.warmup_steps) / span
    height = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    return config.min_learning_rate + height * (config.learning_rate - config.min_learning_rate)
