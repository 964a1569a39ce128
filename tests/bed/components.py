"""The bed's long-running programs: how one is started, watched, found again and stopped.

A program is found again by its process id together with the time that process started, recorded
before the program itself begins, so that neither a reused id nor a killed `up` can mislead.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from . import cgroups, network
from .settings import Bed
from .shell import BedError, enter, tail

# Joins the control groups, records itself, and becomes the program: $1 is the record, then come the
# groups' files up to "--", then the command.
WRAPPER = """
record=$1; shift
while [ "$1" != -- ]; do echo $$ > "$1" || exit 70; shift; done; shift
cat /proc/$$/stat > "$record.new" && mv "$record.new" "$record" && exec "$@"
"""


@dataclass(frozen=True)
class Component:
    """One program. `problem` returns None when it is healthy, else why it is not."""

    bed: Bed
    name: str
    command: list[str]
    cgroup: str
    problem: Callable[[], str | None]
    netns: Path | None = None
    listens: tuple[tuple[str, int], ...] = ()  # in the machine's own network namespace
    environment: dict[str, str] = field(default_factory=dict)
    startup: float = 60  # seconds until it must be healthy

    @property
    def record(self) -> Path:
        return self.bed.run / "processes" / self.name.replace("/", "-")

    @property
    def log(self) -> Path:
        return self.bed.log(self.name)


def _stat(pid: int) -> tuple[str, str] | None:
    """Return a process's state letter and start time, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


def pid_of(component: Component) -> int | None:
    """Return the id of the running program, or None."""
    try:
        recorded = component.record.read_text()
        pid, started = int(recorded.split()[0]), recorded.rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return None
    now = _stat(pid)
    return pid if now and now[0] not in "ZX" and now[1] == started else None


def started_at(component: Component) -> float:
    """Return when the program was last started, in seconds since the epoch (or the far future)."""
    try:
        return component.record.stat().st_mtime
    except OSError:
        return float(1 << 40)


def is_current(component: Component) -> bool:
    """Return whether the running program was started with the command that we would use today."""
    pid = pid_of(component)
    if pid is None:
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return False
    return [os.fsdecode(word) for word in words] == component.command


def _refuse_taken_ports(component: Component) -> None:
    for address, port in component.listens:
        if owner := network.listener(address, port):
            raise BedError(
                f"{component.name} cannot start: {address}:{port} is taken by {owner}. "
                f"End that program, or use another bed: `python3 tests/bed --name OTHER up`"
            )


def launch(component: Component) -> None:
    """Start a program unless it runs already; one that runs with an older command is replaced."""
    if pid_of(component) is not None:
        if is_current(component):
            return
        stop(component)
    _refuse_taken_ports(component)
    component.log.parent.mkdir(parents=True, exist_ok=True)
    component.record.parent.mkdir(parents=True, exist_ok=True)
    component.record.unlink(missing_ok=True)
    cgroups.make(component.cgroup)
    wrapper = ["sh", "-c", WRAPPER, "sh", str(component.record)]
    groups = [*map(str, cgroups.join_files(component.cgroup)), "--"]
    with component.log.open("ab") as log:
        subprocess.Popen(
            [*enter(component.netns), *wrapper, *groups, *component.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **component.environment},
            cwd="/",
            start_new_session=True,
        )


def await_health(component: Component) -> None:
    """Wait until a launched program is healthy; raise with its log's end when it is not."""
    end = monotonic() + component.startup
    born = monotonic() + 5
    while (why := component.problem()) is not None:
        ended = pid_of(component) is None and monotonic() > born
        if ended or monotonic() > end:
            state = "ended" if ended else f"is not healthy after {component.startup:.0f} s"
            raise BedError(
                f"{component.name} {state}: {why}; last lines of {component.log}:\n"
                + tail(component.log)
            )
        sleep(0.05)


def stop(component: Component, patience: float = 10) -> None:
    """Ask a program to end, and kill it when it does not in `patience` seconds."""
    end = monotonic() + patience
    asked = False
    while (pid := pid_of(component)) is not None:
        number = signal.SIGTERM if not asked else signal.SIGKILL
        if not asked or monotonic() > end:
            _signal(pid, number)
        asked = True
        sleep(0.02)
    component.record.unlink(missing_ok=True)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
