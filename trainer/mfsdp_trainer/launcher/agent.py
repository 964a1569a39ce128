"""The elastic agent in a thread of its own, so that PID 1's main thread is free for signals.

In the main thread the agent has no signal handler before workers run: as PID 1 it would ignore a
SIGTERM during rendezvous.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mfsdp_trainer.errors import RendezvousError

from .gang import Gang, Limits


@dataclass(frozen=True)
class Worker:
    """A worker process, by a descriptor that no other process can ever take over."""

    pid: int
    pidfd: int

    def alive(self) -> bool:
        """Whether it has not ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        try:
            signal.pidfd_send_signal(self.pidfd, signum)
        except ProcessLookupError:
            return


class Agent:
    """Runs the gang's part on this node. Start it once; then look at `done`."""

    def __init__(self, gang: Gang, limits: Limits, worker: Sequence[str], run_dir: Path) -> None:
        self._gang = gang
        self._limits = limits
        self._worker = worker
        self._run_dir = run_dir
        self.done = threading.Event()
        self.workers: dict[int, Worker] = {}
        self.exit_codes: dict[int, int] = {}
        self.error: BaseException | None = None
        # Daemon: a rendezvous cannot be cancelled, and must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="elastic-agent", daemon=True)

    def start(self) -> None:
        """Begin: import torch, meet the other nodes, start workers."""
        self._thread.start()

    def _run(self) -> None:
        try:
            from .elastic import run_agent  # torch: seconds, that only this thread waits

            if self._gang.node_rank:
                wait_for_master(
                    self._gang.master_addr, self._gang.master_port, self._limits.rendezvous
                )
            self.exit_codes = run_agent(
                self._gang, self._limits, self._worker, self._run_dir, self._started
            )
        except BaseException as error:  # noqa: BLE001 - kept for the supervisor, which reports it
            self.error = error
        finally:
            self.done.set()

    def _started(self, pids: dict[int, int]) -> None:
        self.workers = {rank: Worker(pid, os.pidfd_open(pid)) for rank, pid in pids.items()}

    def alive(self) -> bool:
        """Whether a worker runs."""
        return any(worker.alive() for worker in self.workers.values())

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to every worker that runs, and to none of their children."""
        for worker in self.workers.values():
            worker.send(signum)

    def kill(self) -> None:
        """End the workers and whatever they started, now."""
        self.send(signal.SIGKILL)
        for worker in self.workers.values():
            try:
                os.killpg(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def wait_for_master(host: str, port: int, timeout: float) -> None:
    """Wait until the name of node rank 0 resolves and its port is open. Raises RendezvousError."""
    deadline = time.monotonic() + timeout
    pause = 0.1
    while True:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except socket.gaierror as error:
            problem = f"its name does not resolve ({error.strerror})"
        except OSError as error:
            problem = f"its port does not answer ({error.strerror or error})"
        else:
            return
        if time.monotonic() + pause > deadline:
            raise RendezvousError(
                f"node rank 0 at {host}:{port} was not there within {timeout:g} s: {problem}; "
                "see why the pod of node rank 0 does not run"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)
