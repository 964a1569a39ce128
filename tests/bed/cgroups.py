"""Control groups of a bed: where its processes are, and so how all of them are found and ended.

A bed has one group, ``mfsdp-bed-NAME``, in every hierarchy: version 1 has one per controller,
version 2 a single one. In it are ``system`` for the control plane and one group per node, which is
also the kubelet's root: a kubelet removes pod groups that it does not know, so two must never share
one.
"""

import os
import signal
from pathlib import Path

from .shell import BedError, wait_until

CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> list[Path]:
    """Return the mount points of all cgroup hierarchies."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in mounts if fields[2] in {"cgroup", "cgroup2"}]
    if not found:
        raise BedError("no cgroup hierarchy is mounted on this machine (/sys/fs/cgroup)")
    return found


def _delegate(parent: Path) -> None:
    """Version 2: let children of `parent` use every controller that it has."""
    available = parent / "cgroup.controllers"
    if available.exists():
        for controller in available.read_text().split():
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:  # cpuset or rt in use elsewhere: kubelets name what they miss
                continue


def make(path: str) -> None:
    """Create a group in every hierarchy, usable at once."""
    for root in hierarchies():
        here = root
        for part in path.split("/"):
            _delegate(here)
            child = here / part
            _make_one(child)
            for name in CPUSET_FILES:  # version 1 starts these empty, and then takes no process
                if (child / "cgroup.clone_children").exists() and (child / name).exists():
                    _inherit(here / name, child / name)
            here = child


def _make_one(group: Path) -> None:
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        raise BedError(
            f"cannot make the control group {group}: {error.strerror}. "
            "In a container this needs --privileged and --cgroupns=private"
        ) from error


def _inherit(source: Path, target: Path) -> None:
    if not target.read_text().strip():
        target.write_text(source.read_text())


def _groups(path: str) -> list[Path]:
    """Return a group and all below it in every hierarchy, children before parents."""
    found: list[Path] = []
    for root in hierarchies():
        for folder, _, _ in os.walk(root / path, topdown=False):
            found.append(Path(folder))
    return found


def processes(path: str) -> set[int]:
    """Return the ids of all processes in a group and below."""
    found: set[int] = set()
    for group in _groups(path):
        try:
            found.update(map(int, (group / "cgroup.procs").read_text().split()))
        except OSError:  # removed while we looked (a pod that ended)
            continue
    return found


def kill(path: str, seconds: float = 20) -> None:
    """Kill every process in a group and below, until none is left."""

    def left() -> str | None:
        pids = processes(path) - {os.getpid()}
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return f"still there: {sorted(pids)}" if pids else None

    _thaw(path)
    wait_until(left, seconds, f"the processes of cgroup {path} to end")


def _thaw(path: str) -> None:
    """A frozen process cannot die."""
    for group in _groups(path):
        for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            if (group / name).exists():
                (group / name).write_text(value)


def remove(path: str) -> None:
    """Remove a group and all below from every hierarchy; its processes must be gone."""

    def left() -> str | None:
        for group in _groups(path):
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:  # the kernel still ends a process
                return str(error)
        return None

    wait_until(left, 20, f"cgroup {path} to be removable")


def join_files(path: str) -> list[Path]:
    """Return the files into which a process writes its id to join a group."""
    return [root / path / "cgroup.procs" for root in hierarchies()]
