"""Where files that belong to a run, but to no checkpoint, are written."""

import tempfile
from pathlib import Path

from .config import TrainerConfig


def beside_checkpoints(config: TrainerConfig, name: str) -> Path:
    """The directory `name` in checkpoint.path; in an object store nothing can be appended to, so
    there it is one of the pod's own, below TMPDIR."""
    root = config.checkpoint.path
    return Path(tempfile.gettempdir() if "://" in root else root) / name
