"""buildah and its layer store, which is in the cache folder and shared by all beds."""

import shutil
from pathlib import Path

from . import mounts
from .settings import cache_root


def store() -> Path:
    """Return the folder of the layer store."""
    return cache_root() / "buildah"


def buildah(*words: str | Path) -> list[str]:
    """Return a buildah command on our own store."""
    root = ["--root", str(store() / "storage"), "--runroot", str(store() / "run")]
    return ["buildah", *root, "--storage-driver", "overlay", *map(str, words)]


def delete() -> None:
    """Remove all layers; the next build starts from nothing."""
    mounts.clear(store())
    shutil.rmtree(store(), ignore_errors=True)
