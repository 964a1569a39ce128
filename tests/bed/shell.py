"""Running other programs, with errors that say which one failed and what it wrote."""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep


class BedError(Exception):
    """What a person can act on: printed without a traceback."""


def enter(netns: Path | None) -> list[str]:
    """Return the prefix that runs a command in a network namespace.

    Not ``ip netns exec``: that remounts /sys, and a kubelet then finds no cgroups.
    """
    return [] if netns is None else ["nsenter", f"--net={netns}"]


def run(
    *argv: str | Path,
    netns: Path | None = None,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command to its end and return what it printed; raise `BedError` when it fails."""
    command = [*enter(netns), *map(str, argv)]
    try:
        done = subprocess.run(
            command,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
    except FileNotFoundError as error:
        raise BedError(f"{error.filename} is not installed: run `python3 tests/bed up`") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise BedError(f"`{' '.join(command)}` failed with {done.returncode}: {said}")
    return done.stdout


def wait_until(problem: Callable[[], str | None], seconds: float, what: str) -> None:
    """Wait until `problem` returns None; raise with its last answer after `seconds`."""
    end = monotonic() + seconds
    while (why := problem()) is not None:
        if monotonic() > end:
            raise BedError(f"waited {seconds:.0f} s for {what}: {why}")
        sleep(0.05)


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log for an error message."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(f"    {line[:400]}" for line in text.splitlines()[-lines:])
