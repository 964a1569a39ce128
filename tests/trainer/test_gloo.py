"""Every gloo group that a rank makes has one worker: see `mfsdp_trainer.gloo`."""

import os
import subprocess
import sys

WORKERS = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _world

from mfsdp_trainer.world import World

world = World.start(gpu=False)
init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
dist.all_reduce(torch.ones(1))
cpu = torch.device("cpu")
for group in _world.pg_map:
    backend = group._get_backend(cpu)
    print(backend.name(), backend.options._threads, backend.options._timeout.total_seconds())
world.leave()
"""


def _run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKERS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_groups_of_the_world_and_of_meshes_have_one_worker() -> None:
    ran = _run()
    assert ran.returncode == 0, ran.stderr
    groups = [line.split() for line in ran.stdout.splitlines()]
    assert len(groups) >= 3, "the world's own, control and storage at least"
    assert {(name, workers) for name, workers, _ in groups} == {("gloo", "1")}
    assert float(groups[0][2]) == 24 * 3600, "its patience is the world's"


def test_the_interface_is_the_one_that_the_environment_names() -> None:
    assert _run(GLOO_SOCKET_IFNAME="lo").returncode == 0
    ran = _run(GLOO_SOCKET_IFNAME="nowhere0")
    assert ran.returncode != 0
    assert "nowhere0" in ran.stderr
