"""The gang as one process sees it: its rank, its device, and the groups it speaks over.

Everything collective that is not the engine's goes through `World`, so that a run of one process
and a run of a thousand follow the same code, and an error of one rank ends all of them alike.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _world

from .errors import TrainerError
from .gloo import use_one_worker
from .rendezvous import meet

_SETUP_TIMEOUT = timedelta(hours=24)
"""Patience of the control group, and of all groups until training begins: others wait there while
rank 0 tokenises a corpus. Whether that wait is a hang is for the watch in PID 1 to say, which knows
the phase."""
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def _usable_cores() -> float:
    """Cores that this process may use: its affinity, or less where a cgroup limits the pod."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = _CGROUP_CPU.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def _group(backend: str) -> ProcessGroup:
    """A new group of all ranks. Collective."""
    group = dist.new_group(backend=backend, timeout=_SETUP_TIMEOUT)
    assert isinstance(group, ProcessGroup)
    return group


@dataclass(frozen=True)
class World:
    """One rank's view of the gang. Make it with `World.start`."""

    rank: int
    size: int
    device: torch.device
    control: ProcessGroup
    """gloo, very patient: setup and agreements, never gradients."""
    storage: ProcessGroup
    """The checkpoints' own group: a save in the background must not meet the training's
    collectives."""

    @classmethod
    def start(cls, *, gpu: bool) -> "World":
        """Join the gang that torchrun's environment describes; alone if there is none.

        Raises RendezvousError where the others are not found in time.
        """
        alone = "RANK" not in os.environ
        local_rank = int(os.environ.get("LOCAL_RANK") or 0)
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(device)
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, math.floor(_usable_cores() / local_size)))
        use_one_worker()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=HashStore() if alone else meet(),
            rank=int(os.environ.get("RANK") or 0),
            world_size=1 if alone else int(os.environ["WORLD_SIZE"]),
            timeout=_SETUP_TIMEOUT,
            device_id=device if gpu else None,
        )
        return cls.joined(device)

    @classmethod
    def joined(cls, device: torch.device) -> "World":
        """The world of a process group that exists already. Collective."""
        mixed = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        return cls(dist.get_rank(), dist.get_world_size(), device, _group("gloo"), _group(mixed))

    def limit_collectives(self, seconds: float) -> None:
        """Bound every collective of the training from now on; setup and checkpoints stay patient.

        torch gives the groups of a device mesh limits of its own, so each is set.
        """
        patient = (self.control, self.storage)
        for group in list(_world.pg_map):
            if group not in patient:
                dist.set_timeout(timedelta(seconds=seconds), group)

    def leave(self) -> None:
        """Leave the gang: the last thing that a rank does."""
        dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which speaks and writes for all."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sum over all ranks, in double precision on every rank. Collective."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def barrier(self) -> None:
        """Wait for all ranks, however long the setup of one takes."""
        dist.barrier(group=self.control)

    def gather[T](self, value: T) -> list[T]:
        """The values of all ranks in rank order, on every rank. Collective."""
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first[T](self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank; its TrainerError ends every rank."""
        answer: list[T | TrainerError | None] = [None]
        if self.is_first:
            try:
                answer = [make()]
            except TrainerError as error:
                answer = [error]
        dist.broadcast_object_list(answer, src=0, group=self.control)
        if isinstance(answer[0], TrainerError):
            raise answer[0]
        return answer[0]  # type: ignore[return-value]

    def together[T](self, make: Callable[[], T]) -> T:
        """`make` on every rank; where some raise a TrainerError, all raise the first rank's.

        For work that may fail on one node alone, so that no rank waits in a collective for a rank
        that is gone.
        """
        error: TrainerError | None = None
        try:
            result = make()
        except TrainerError as caught:
            error = caught
        errors: list[TrainerError | None] = [None] * self.size
        dist.all_gather_object(errors, error, group=self.control)
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            raise first
        return result
