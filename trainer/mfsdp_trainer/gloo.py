"""gloo, whose groups have one worker each: with torch's two a rank may crash or hang.

Torch's `ProcessGroupGloo::runLoop` writes the name of the work that it ended into a string that
all workers of a group share, without a lock (torch 2.15). Two collectives that end together free
that string twice, and the heap is corrupt: seen as a crash inside malloc, and as a hang. Nothing is
lost with one worker: the collectives of a group start in one order on every rank anyway.
"""

import os

from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed import Backend, ProcessGroup, ProcessGroupGloo

_WORKERS = 1


def use_one_worker() -> None:
    """Have every gloo group that is made from now on work its collectives off one by one."""
    Backend.register_backend(
        Backend.GLOO,
        _create,
        extended_api=True,
        devices=["cpu", "cuda"],
        _backend_type=ProcessGroup.BackendType.GLOO,
    )


def _create(group: _DistributedBackendOptions, _: object | None) -> ProcessGroupGloo:
    """As torch's own, which takes no options for gloo."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stub says Options
    options._devices = _devices()
    options._timeout = group.timeout
    options._threads = _WORKERS
    options.global_ranks_in_group = group.global_ranks_in_group
    options.group_name = group.group_id
    return ProcessGroupGloo(group.store, group.group_rank, group.group_size, options)


def _devices() -> list[ProcessGroupGloo.Device]:
    """What gloo speaks over: the interfaces that GLOO_SOCKET_IFNAME names, or the host's own."""
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    if not names:
        return [ProcessGroupGloo.create_default_device()]
    return [ProcessGroupGloo.create_device(interface=name) for name in names]
