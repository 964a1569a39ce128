"""The optimizer and its schedule."""

from .optimizer import OptimizerFactory, make_optimizer, materialise, optimizer_state
from .schedule import learning_rate

__all__ = ["OptimizerFactory", "learning_rate", "make_optimizer", "materialise", "optimizer_state"]
