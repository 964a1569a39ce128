"""What a build removes of older versions, and what it must not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# The bed is run from its folder, not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bed import prune


def folder(root: Path, name: str, used: int) -> Path:
    """A built piece that was used at some time."""
    made = root / name
    made.mkdir()
    os.utime(made, (used, used))
    return made


def test_the_two_versions_used_last_stay_and_so_does_what_runs(tmp_path: Path) -> None:
    running = folder(tmp_path, "tools-0", 1)
    shutil.copy("/bin/sleep", running / "sleep")
    os.utime(running, (1, 1))
    process = subprocess.Popen([running / "sleep", "600"])
    try:
        for number in (1, 2, 3):
            folder(tmp_path, f"tools-{number}", number + 1)
        folder(tmp_path, "tools-other-9", 0)  # another piece, whose name begins alike
        prune.programs(tmp_path, "tools")
    finally:
        process.kill()
        process.wait()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"tools-0", "tools-2", "tools-3", "tools-other-9"}


def image(created: int, *names: str) -> dict[str, Any]:
    """An entry of `buildah images --json`."""
    return {"created": created, "names": list(names)}


def test_the_newest_two_tags_of_each_of_our_images_stay() -> None:
    operator = [image(n, f"localhost:15050/mfsdp/operator:{n}") for n in (3, 1, 2)]
    stage = [image(n, f"localhost/mfsdp-stage/uv:{n}") for n in (7, 5)]
    others = [image(n, f"docker.io/library/python:3.{n}") for n in (1, 2, 3)]
    nameless = [{"created": 9, "names": None}]
    listing = [*operator, *stage, *others, *nameless]
    assert prune.superseded(listing) == ["localhost:15050/mfsdp/operator:1"]
