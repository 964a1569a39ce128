"""A job's pods as processes of this machine: the commands and variables that the operator gives
them, with paths and addresses of here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mfsdp_operator.api.job import parse_job
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.cli.local_run import free_port
from mfsdp_operator.cli.own_program import program

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "own-program"
DEADLINE = 240.0
PATIENCE = 30.0
"""Seconds for the other pods once one has failed."""


class Pods:
    """The gang of an example. `changes` are to its spec, `args` replace its program's, `shim` is a
    script that runs the program's."""

    def __init__(
        self,
        example: str,
        directory: Path,
        args: list[str],
        moved: Mapping[str, str],
        shim: Path | None = None,
        **changes: Any,
    ) -> None:
        directory.mkdir(exist_ok=True)
        manifest = yaml.safe_load((EXAMPLES / example).read_text(encoding="utf-8"))
        manifest["spec"] |= changes
        manifest["spec"]["template"]["spec"]["containers"][0]["args"] = args
        job = parse_job(manifest)
        resolved = resolve(job.spec)
        self._logs, self._processes = [], []
        here = _addresses(free_port())
        for rank in range(job.spec.nodes):
            what = program(job, resolved, rank)
            command = [_moved(word, moved) for word in what.command]
            if shim is not None:
                script = next(n for n, word in enumerate(command) if word.endswith(".py"))
                command.insert(script, str(shim))
            given = {name: _moved(value, moved) for name, value in what.env.items()}
            log = directory / f"pod-{rank}.log"
            self._logs.append(log)
            self._processes.append(_start(command, given | here, directory, log))

    def log(self, rank: int = 0) -> str:
        """What a pod has printed."""
        return self._logs[rank].read_text(encoding="utf-8", errors="replace")

    def until(self, what: str, look: Callable[[str], bool]) -> None:
        """Wait for something in rank 0's log."""
        end = time.monotonic() + DEADLINE
        while not look(self.log()):
            assert self._processes[0].poll() is None, f"ended before {what}:\n{self.log()}"
            assert time.monotonic() < end, f"waited {DEADLINE:.0f} s for {what}:\n{self.log()}"
            time.sleep(0.1)

    def terminate(self, rank: int) -> None:
        """SIGTERM to one pod's first process, as the kubelet sends it."""
        self._processes[rank].terminate()

    def wait(self) -> list[int | None]:
        """The exit codes of all pods; None of one that still waits for another that failed."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            codes = [process.poll() for process in self._processes]
            if None not in codes:
                break
            if any(codes):
                end = min(end, time.monotonic() + PATIENCE)
            time.sleep(0.1)
        return codes

    def stop(self) -> None:
        """End what still runs: torchrun hears no signal while it waits for other pods."""
        for process in self._processes:
            if process.poll() is None:
                for child in _children(process.pid):
                    os.kill(child, signal.SIGKILL)
                process.kill()
                process.wait()


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]


def _addresses(port: int) -> dict[str, str]:
    """Where pods of this machine meet."""
    address = {f"{family}MASTER_ADDR": "127.0.0.1" for family in ("", "PET_")}
    ports = {f"{family}MASTER_PORT": str(port) for family in ("", "PET_")}
    return address | ports | {"GLOO_SOCKET_IFNAME": "lo"}


def _moved(text: str, moved: Mapping[str, str]) -> str:
    for pod, here in moved.items():
        text = text.replace(pod, here) if text.startswith(pod) else text
    return text


def _start(
    command: list[str], env: Mapping[str, str], directory: Path, log: Path
) -> "subprocess.Popen[bytes]":
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(directory), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **env, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
