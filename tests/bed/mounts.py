"""Mounts under the bed's folders: containers', volumes' and namespaces', all undone by `down`."""

import os
import re
import shutil
from pathlib import Path

from .shell import BedError, run


def under(folder: Path) -> list[Path]:
    """Return the mount points at or under a folder, those on top first."""
    points: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        escaped = line.split()[4]
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), escaped))
        if point.is_relative_to(folder):
            points.append(point)
    return points[::-1]


def clear(folder: Path) -> None:
    """Unmount everything under a folder, lazily where something still uses it."""
    for point in under(folder.resolve()):
        try:
            run("umount", point)
        except BedError:
            run("umount", "--lazy", point)
    left = under(folder.resolve())
    if left:
        raise BedError(f"could not unmount {', '.join(map(str, left))}: unmount by hand, try again")


def delete(folder: Path) -> None:
    """Remove a folder after unmounting what is in it.

    Never across a mount: a pod may have a folder of the machine mounted there.
    """
    if not os.path.lexists(folder):
        return
    clear(folder)
    shutil.rmtree(folder)
