"""A training program of one's own: FSDP2 by hand, its own checkpoints, started by torchrun.

    torchrun train_fsdp2.py --steps 400     # in a pod: examples/own-program/torchrun.yaml

torchrun says who each process is, the operator's variables (MFSDP_*) say how the job wants to be
sharded and where its volume is. The toy model learns to continue a + b, a + 2b, ... modulo 31.
"""

import argparse
import logging
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

MODULUS = 31
RESHARD = {"optim_grads": False, "optim_grads_params": True}
"""The job's strategy -> whether parameters are sharded again after the forward pass."""
log = logging.getLogger("train_fsdp2")


class Block(nn.Module):
    """A residual layer: the unit that FSDP2 gathers at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.outer = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, width] -> [batch, width]."""
        return hidden + self.outer(self.inner(hidden))


class Model(nn.Module):
    """Two numbers of a progression -> logits of the next one."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(MODULUS, width // 2)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, MODULUS)

    def forward(self, pairs: Tensor) -> Tensor:
        """[batch, 2] -> [batch, MODULUS]."""
        hidden = self.embed(pairs).flatten(1)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def shard(model: Model, device: torch.device) -> None:
    """Shard as the job says. Ends the program where this one cannot."""
    engine = os.environ.get("MFSDP_ENGINE", "torch_fsdp2")
    strategy = os.environ.get("MFSDP_SHARDING_STRATEGY", "optim_grads_params")
    if engine != "torch_fsdp2" or strategy not in RESHARD:
        sys.exit(
            f"train_fsdp2.py cannot do {engine} {strategy}: set useTorchFSDP2 to true and "
            f"dataParallelShardingStrategy to one of {', '.join(RESHARD)}"
        )
    replicas = int(os.environ.get("MFSDP_DATA_PARALLEL_REPLICAS", "1"))
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    mesh = mesh if replicas > 1 else mesh["shard"]
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=RESHARD[strategy])
    fully_shard(model, mesh=mesh, reshard_after_forward=RESHARD[strategy])


class Checkpoints:
    """Directories step-N on the job's volume. A name appears when all of it is written."""

    def __init__(self, directory: Path, model: Model, optimizer: torch.optim.Optimizer) -> None:
        self.directory, self.model, self.optimizer = directory, model, optimizer
        directory.mkdir(parents=True, exist_ok=True)

    def published(self) -> list[int]:
        """Steps that can be gone on from, the newest last."""
        names = [re.fullmatch(r"step-(\d+)", path.name) for path in self.directory.iterdir()]
        return sorted(int(name[1]) for name in names if name)

    def save(self, step: int) -> None:
        """Write the shards of all ranks, then let the directory appear; keeps two."""
        unfinished = self.directory / f".step-{step}"
        dcp.save(self._state(), checkpoint_id=unfinished)
        dist.barrier()
        if dist.get_rank() == 0:
            unfinished.rename(self.directory / f"step-{step}")
            for old in self.published()[:-2]:
                shutil.rmtree(self.directory / f"step-{old}")
            log.info("checkpoint of step %d is published", step)
        dist.barrier()

    def load_newest(self) -> int:
        """Go on from the newest, on any number of ranks; its step, or 0."""
        step = max(self.published(), default=0)
        if step:
            state = self._state()
            dcp.load(state, checkpoint_id=self.directory / f"step-{step}")
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return step

    def _state(self) -> dict[str, dict[str, object]]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


class StopRequest:
    """SIGTERM, which an evicted, suspended or deleted pod gets. torchrun hands it on."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.asked = True

    def by_any_rank(self, device: torch.device) -> bool:
        """The same answer on all ranks: often only one node's pod is evicted."""
        asked = torch.tensor(float(self.asked), device=device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        return bool(asked)


def batch_of(step: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and targets of this rank. A function of step and rank: resuming is exact."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    start, stride = torch.randint(MODULUS, (2, size), generator=generator)
    terms = torch.stack([start, start + stride, start + 2 * stride], dim=1) % MODULUS
    return terms[:, :2].to(device), terms[:, 2].to(device)


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    """From the newest checkpoint to the last step."""
    stop = StopRequest()
    torch.manual_seed(0)
    model = Model().to(device)
    shard(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    checkpoints = Checkpoints(arguments.checkpoints, model, optimizer)
    first = checkpoints.load_newest() + 1
    log.info("rank %d of %d begins at step %d", dist.get_rank(), dist.get_world_size(), first)
    for step in range(first, arguments.steps + 1):
        inputs, targets = batch_of(step, arguments.batch, device)
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % arguments.log_every == 0:
            dist.all_reduce(loss.detach_())
            if dist.get_rank() == 0:
                log.info("step %d loss %.4f", step, loss.item() / dist.get_world_size())
        told = stop.by_any_rank(device)
        if told or step % arguments.save_every == 0 or step == arguments.steps:
            checkpoints.save(step)
        if told:
            sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Entry point of each process."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="examples of a rank and step")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument(
        "--checkpoints", type=Path, default=os.environ.get("MFSDP_CHECKPOINT_DIR", "checkpoints")
    )
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    train(arguments, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
