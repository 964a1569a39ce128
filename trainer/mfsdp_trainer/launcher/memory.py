"""Tells a kill by the container's memory limit from any other SIGKILL, by the cgroup's counter."""

import re
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
# Version 2, and version 1: where in the hierarchy, which file counts kills, which holds the limit.
_VERSIONS: Final = (
    ("", "memory.events", "memory.max"),
    ("memory", "memory.oom_control", "memory.limit_in_bytes"),
)
_UNLIMITED: Final = 1 << 60


def _cgroup_path(controller: str) -> str:
    """This process's path below the hierarchy of a controller (empty: version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == controller or controller in controllers.split(","):
            return path.strip("/")
    return ""


class MemoryWatch:
    """Counts the out-of-memory kills of this container since the watch began."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._files = self._find(root)
        self._before = self._count()

    @staticmethod
    def _find(root: Path) -> tuple[Path, Path] | None:
        """The files of our own cgroup; inside a container that is the root of what it sees."""
        for controller, events, limit in _VERSIONS:
            top = root / controller if controller else root
            for directory in (top / _cgroup_path(controller), top):
                if (directory / events).is_file():
                    return directory / events, directory / limit
        return None

    def _count(self) -> int:
        if self._files is None:
            return 0
        try:
            found = re.search(r"^oom_kill (\d+)", self._files[0].read_text(encoding="ascii"), re.M)
        except OSError:
            return 0
        return int(found[1]) if found else 0

    def killed(self) -> bool:
        """Whether the kernel killed a process of this container for want of memory."""
        return self._count() > self._before

    def limit(self) -> int | None:
        """The container's memory limit in bytes, if it has one."""
        if self._files is None:
            return None
        try:
            limit = int(self._files[1].read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return limit if limit < _UNLIMITED else None
