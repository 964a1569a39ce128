"""What tests of Megatron FSDP run on the ranks of a gang: the product's own code, on the CPU.

The engine takes the device from its World, and only `mfsdp_trainer.run.run` asks for GPUs: from
`train` on, everything is what a run on GPUs goes through.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.trainer.gang import ON_GPU
from tests.trainer.megatron.cpu_shim import cuda_on_cpu
from tests.trainer.runs import TINY, Recorder, Result, configuration, run_training
from torch.distributed.tensor import DTensor, Shard

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.loop import Loop
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

ODD = {**TINY, "vocab_size": 261, "intermediate_size": 44}
"""Sizes that 2 and 4 ranks do not share evenly."""
MIXTURE = {
    **ODD,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 261,
    "n_embd": 20,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **{f"{place}_pdrop": 0 for place in ("attn", "embd", "resid")},
}
GEMMA = {**ODD, "model_type": "gemma3_text", "head_dim": 8}


def megatron(
    text: Path, checkpoints: Path, strategy: str, *, replicas: int = 1, **choice: Any
) -> TrainerConfig:
    """A small run under Megatron FSDP; see `configuration`."""
    config = configuration(text, checkpoints, strategy=strategy, **choice)
    update = {
        "use_megatron_fsdp": True,
        "use_torch_fsdp2": False,
        "data_parallel_replicas": replicas,
    }
    return config.model_copy(update=update)


@contextmanager
def quietly_on_cpu() -> Iterator[None]:
    """The shim, without the package's remarks on it; nothing where the ranks have GPUs."""
    if ON_GPU:
        yield
        return
    logging.getLogger("megatron").setLevel(logging.ERROR)
    with cuda_on_cpu(), warnings.catch_warnings():
        # gloo has no private streams, and the package's synchronous collectives say so.
        warnings.filterwarnings("ignore", module="torch.distributed")
        yield


def on_cpu(world: World, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a gang with the shim in place."""
    with quietly_on_cpu():
        return function(world, *arguments)


def run_on_cpu(world: World, config: TrainerConfig, stop_after: int | None = None) -> Result:
    """A whole run, as `run_training`."""
    result: Result = on_cpu(world, run_training, config, stop_after)
    return result


def built(world: World, config: TrainerConfig) -> Loop:
    """Everything of a run, ready to train."""
    return build(config, world, Recorder(world.rank))[0]


@torch.no_grad()
def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a checkpoint's entry, even or uneven. Collective.

    Puts together what torch.distributed.checkpoint is told of the chunks.
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().clone()
    full = torch.zeros(tensor.shape, dtype=tensor.dtype)
    for chunk in tensor.__create_chunk_list__():
        part = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
        full[part] = tensor.to_local()
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            dist.all_reduce(full, group=tensor.device_mesh.get_group(dimension))
    return full


def digest(loop: Loop) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer, whole, by its name in checkpoints. Collective."""
    state = loop.engine.state()
    found = {name: whole(tensor) for name, tensor in state["model"].items()}
    for name, slots in state["optimizer"].items():
        found |= {f"{name}/{slot}": whole(tensor) for slot, tensor in slots.items()}
    return found
