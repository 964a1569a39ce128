"""Checkpoints: sharded, published atomically, resumed on any world size."""

from .checkpoints import Checkpoints
from .manifest import Position

__all__ = ["Checkpoints", "Position"]
