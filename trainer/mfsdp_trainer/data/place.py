"""Where a run keeps its tokenizer and tokens."""

import os
import tempfile
from pathlib import Path

from mfsdp_trainer.config import TrainerConfig


def data_directory(config: TrainerConfig) -> Path:
    """Beside the checkpoints; where those are in an object store, a directory of each node's own.

    Tokens are memory-mapped, which no object can be.
    """
    if config.data.cache_path is not None:
        return Path(config.data.cache_path)
    if is_of_each_node(config):
        return Path(tempfile.gettempdir()) / f"mfsdp-data-{os.getuid()}"
    return Path(config.checkpoint.path) / "data"


def is_of_each_node(config: TrainerConfig) -> bool:
    """Whether every node makes its own: others cannot see it."""
    return config.data.cache_path is None and "://" in config.checkpoint.path
