"""torch's elastic agent, set up for one gang: static rendezvous, no restarts of its own.

The operator restarts gangs, so the agent only places ranks, starts workers and stops the survivors
of a failure. The only module of the launcher that imports torch.
"""

import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from mfsdp_trainer.errors import RendezvousError, one_line
from mfsdp_trainer.reporting import STACKS_SIGNAL, STOP_SIGNAL

from .gang import Gang, Limits

type OnStart = Callable[[dict[int, int]], None]
"""Called with the process of each global rank."""


class _Rendezvous(StaticTCPRendezvous):
    """The static rendezvous, with errors that say what to look at."""

    def next_rendezvous(self) -> RendezvousInfo:
        try:
            return super().next_rendezvous()
        except (dist.DistError, RuntimeError) as error:
            raise RendezvousError(self._explain(str(error))) from error

    def _explain(self, text: str) -> str:
        where = f"{self.master_addr}:{self.master_port}"
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            return f"port {self.master_port} is in use on this node: choose another MASTER_PORT"
        if joined := re.search(r"(\d+)/(\d+) clients joined", text):
            return (
                f"only {joined[1]} of {joined[2]} nodes joined {where} within "
                f"{self.timeout.total_seconds():g} s: see why the pods of the others do not run"
            )
        return f"cannot meet the other nodes at {where}: {one_line(text, 300)}"


class _Agent(LocalElasticAgent):
    """The agent, telling which processes it started, with their signals held back."""

    def __init__(self, spec: WorkerSpec, logs: Path, barrier: float, on_start: OnStart) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(logs)), exit_barrier_timeout=barrier)
        self._on_start = on_start

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        # A worker that has not installed its handlers yet must not die of a signal that asks for
        # a checkpoint: it inherits a mask that keeps both pending until Reporter.from_env.
        signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL, STACKS_SIGNAL})
        pids: dict[int, int] = super()._start_workers(worker_group)
        self._on_start({w.global_rank: pids[w.local_rank] for w in worker_group.workers})
        return pids


def run_agent(
    gang: Gang, limits: Limits, worker: Sequence[str], run_dir: Path, on_start: OnStart
) -> dict[int, int]:
    """Meet the other nodes, start the workers, wait for their end.

    `worker` are the arguments to the Python interpreter. Returns the exit code of each global rank
    that failed, the first one first; a negative code is a signal. Raises RendezvousError.
    """
    # Its messages are for those who debug torchrun; ours say the same once.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    handler: RendezvousHandler = _Rendezvous(
        gang.master_addr,
        gang.master_port,
        gang.node_rank,
        gang.nodes,
        gang.run_id,
        int(limits.rendezvous),
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=gang.procs,
        entrypoint=sys.executable,
        args=tuple(worker),
        rdzv_handler=handler,
        max_restarts=0,
        monitor_interval=0.1,
        master_addr=gang.master_addr,
        master_port=gang.master_port,
    )
    result = _Agent(spec, run_dir / "elastic", limits.exit_barrier, on_start).run()
    return _failures(result)


def _failures(result: RunResult) -> dict[int, int]:
    failures = sorted(result.failures.items(), key=lambda item: item[1].timestamp)
    return {rank: failure.exitcode for rank, failure in failures}
