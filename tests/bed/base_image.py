"""The image that the Dockerfile starts from: pulled, or made from Debian packages.

A machine that reaches no image registry gets Debian with the distribution's Python under the same
name. It lacks ``python`` and ``pip``: a Dockerfile that works on both calls ``python3 -m venv``.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import mounts
from .layers import buildah
from .prerequisites import IMAGE_PACKAGES, install_packages
from .settings import cache_root
from .shell import BedError, run

SUITE = "trixie"
PACKAGES = "python3,python3-venv,ca-certificates,libgomp1"
SALT = f"{SUITE} {PACKAGES}"  # part of every image's tag
PULL_SECONDS = 45
MIRROR = re.compile(r"https?://\S+/debian/?(?=\s)")


def present(name: str) -> bool:
    """Return whether our store has an image."""
    found = subprocess.run(
        buildah("inspect", "--type", "image", name), capture_output=True, check=False
    )
    return found.returncode == 0


def _pull(name: str) -> bool:
    try:
        pulled = subprocess.run(
            buildah("pull", "--quiet", name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PULL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return pulled.returncode == 0


def _mirror() -> list[str]:
    """Return the machine's own Debian mirror, if it has one; debootstrap knows one otherwise."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for path in lists:
        found = MIRROR.search(path.read_text()) if path.is_file() else None
        if found:
            return [found[0]]
    return []


def _bootstrap(root: Path) -> None:
    """Fill a folder with a minimal Debian."""
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root),
               *_mirror()]  # fmt: skip
    log = root.with_suffix(".log")
    with log.open("wb") as sink:
        done = subprocess.run(command, stdout=sink, stderr=sink, check=False)
    if done.returncode:
        said = log.read_text(errors="replace")[-1500:]
        raise BedError(f"debootstrap {SUITE} failed, see {log}:\n{said}")
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / leftover, ignore_errors=True)


def _commit(root: Path, name: str) -> None:
    container = run(*buildah("from", "scratch")).strip()
    try:
        run(*buildah("add", "--quiet", container, root, "/"))
        run(*buildah("config", "--cmd", "python3", "--env", "LANG=C.UTF-8", container))
        run(*buildah("commit", "--quiet", container, name))
    finally:
        run(*buildah("rm", container))


def ensure(name: str) -> None:
    """Make the image `name` available to builds."""
    install_packages(IMAGE_PACKAGES)
    if present(name) or _pull(name):
        return
    print(f"{name} cannot be pulled: making it from Debian packages (about a minute)",
          file=sys.stderr)  # fmt: skip
    root = cache_root() / "debian-root"
    mounts.delete(root)  # of a run that was killed: debootstrap mounts /proc and /sys in it
    root.mkdir(parents=True)
    try:
        _bootstrap(root)
        _commit(root, name)
    finally:
        mounts.delete(root)
