"""The optimizer and its schedule."""

from .adamw import OptimizerFactory, adamw
from .schedule import learning_rate

__all__ = ["OptimizerFactory", "adamw", "learning_rate"]
