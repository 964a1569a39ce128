"""Data-parallel engines behind one small protocol."""

from .base import Engine, Setup
from .registry import build_engine

__all__ = ["Engine", "Setup", "build_engine"]
