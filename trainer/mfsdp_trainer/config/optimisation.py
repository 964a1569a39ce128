"""The words and parts of `TrainingConfig` that say how weights are updated."""

import re
import warnings
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field


class OptimizerKind(StrEnum):
    """Which rule updates the weights."""

    ADAMW = "adamw"
    SGD = "sgd"


class Schedule(StrEnum):
    """How the learning rate goes from its peak to minLearningRate."""

    COSINE = "cosine"
    LINEAR = "linear"
    INVERSE_SQRT = "inverse_sqrt"
    WSD = "wsd"
    CONSTANT = "constant"


class DecayForm(StrEnum):
    """How the last part of schedule wsd falls."""

    LINEAR = "linear"
    COSINE = "cosine"
    SQRT = "sqrt"


DECAY_FRACTION: Final = 0.1
"""Share of the steps in which wsd decays where nothing says so."""

ADAM_BETAS: Final = (0.9, 0.95)
ADAM_EPS: Final = 1e-8
MOMENTUM: Final = 0.9

CONSTANT_RATE: Final = (
    "training.minLearningRate is not for schedule constant: choose another schedule, or drop it"
)
MOMENTUM_OF_SGD: Final = "training.momentum is of optimizer sgd: set it, or drop momentum"
BETAS_OF_ADAMW: Final = (
    "training.adamBeta1, adamBeta2 and adamEps are of optimizer adamw: set it, or drop them"
)


def _compiles(pattern: str) -> str:
    try:
        with warnings.catch_warnings():
            # What Python's syntax may come to mean one day (a set in a set) is no matter here.
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


NamePattern = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_compiles)]
"""A Python regular expression, looked for anywhere in a parameter's name."""
