"""The store that a path or URL names."""

from pathlib import Path
from typing import Final

from mfsdp_trainer.errors import ConfigError

from .directory import Directory
from .store import Store

_SCHEMES: Final = ("s3", "gs", "az")


def open_store(path: str) -> Store:
    """Where checkpoints are kept. Raises ConfigError for an URL of anything but object stores."""
    scheme, found, _ = path.partition("://")
    if not found:
        return Directory(Path(path))
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"checkpoint.path: {path} is no place for checkpoints: use a directory, or an URL "
            "s3://BUCKET/PREFIX, gs://... or az://..."
        )
    # Late: directories, which most runs use, need no client of object stores.
    from .bucket import Bucket

    return Bucket(path)
