"""Removes what newer builds took the place of, so that the cache does not grow with every version.

Two of each are kept, by when they were last used: checkouts of two versions can work side by side.
Call it under the lock of the build. The registry keeps its tags (jobs may run from them), and the
nodes' copies are the kubelet's to remove when its disk fills.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .layers import buildah
from .shell import BedError

KEPT = 2
OURS = "/mfsdp"  # in the name of every image that the bed builds


def programs(root: Path, piece: str) -> None:
    """Remove folders of a piece that are neither among the newest two nor run from."""
    folders = [path for path in root.glob(f"{piece}-*") if path.name.rpartition("-")[0] == piece]
    running = _running_from(root)
    for folder in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        if folder not in running:
            shutil.rmtree(folder)


def _running_from(root: Path) -> set[Path]:
    """The folders in which a program of some process lies."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/exe"):
        with suppress(OSError):  # it ended meanwhile
            program = process.readlink()
            if root in program.parents:
                found.add(root / program.relative_to(root).parts[0])
    return found


def images() -> None:
    """Drop all tags of our images from the layer store but the newest two of each, and with them
    the layers that nothing else has."""
    listing = subprocess.run(
        buildah("images", "--json"), capture_output=True, text=True, check=True
    ).stdout
    for name in superseded(json.loads(listing or "[]")):
        done = subprocess.run(buildah("rmi", name), capture_output=True, text=True, check=False)
        if done.returncode:
            raise BedError(f"removing the old image {name} failed: {done.stderr.strip()}")


def superseded(listing: Iterable[dict[str, Any]]) -> list[str]:
    """The names to drop, out of what `buildah images --json` prints."""
    tags: dict[str, list[tuple[int, str]]] = {}
    for image in listing:
        for name in image.get("names") or ():
            if OURS in name:
                tags.setdefault(name.rpartition(":")[0], []).append((image["created"], name))
    return [name for of_one in tags.values() for _, name in sorted(of_one, reverse=True)[KEPT:]]
