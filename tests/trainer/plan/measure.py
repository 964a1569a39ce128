"""What a run on the CPU really holds and sends: to hold the plan's sums against."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer.memory import Live
from tests.trainer.runs import Recorder
from torch import Tensor

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
_COLLECTIVES = (
    *("all_gather_into_tensor", "all_gather_single", "all_reduce"),
    *("reduce_scatter_tensor", "reduce_scatter_single"),
)


@dataclass
class Measured:
    """Bytes of one rank in the second step of a run."""

    states: int
    """Live tensors as the last backward pass has ended."""
    peak: int
    """The most at any time of the step."""
    sent: dict[str, int]
    """By collective, as a ring sends them."""


def measure(world: World, config: TrainerConfig) -> Measured:
    """Two steps of training. Collective."""
    gc.collect()
    found = Measured(0, 0, {})
    with Live() as live:
        loop, _ = build(config, world, Recorder(world.rank))
        clip = loop.engine.clip

        def look(limit: float) -> float:
            found.states = live.now()
            return clip(limit)

        loop.engine.clip = look  # type: ignore[method-assign]
        loop._step(Position(step=0, consumed=0))
        live.watch_again()
        with counted(found.sent):
            loop._step(Position(step=1, consumed=config.training.global_batch_size))
        found.peak = live.peak
    if (wrapped := getattr(loop.engine, "_ddp", None)) is not None:
        # DDP reduces from C++, buckets of which it tells the sizes.
        told = wrapped._get_ddp_logging_data()
        sizes = str(told.get("rebuilt_bucket_sizes") or told["bucket_sizes"])
        whole = sum(int(size) for size in sizes.split(","))
        found.sent["all_reduce"] = 2 * whole * (world.size - 1) // world.size
    return found


@contextmanager
def counted(sent: dict[str, int]) -> Iterator[None]:
    """Adds up what collectives send."""

    def watched(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **named: Any) -> Any:
            tensors = [v for v in (*args, *named.values()) if isinstance(v, Tensor)]
            # What is gathered into, scattered from, or reduced: the whole of it.
            whole = max(tensors, key=Tensor.numel)
            if whole.dtype is not torch.float64 and whole.numel() > 1:  # no sums of numbers
                ranks = dist.get_world_size(named.get("group"))
                size = whole.numel() * whole.element_size() * (ranks - 1) // ranks
                sent[kind] = sent.get(kind, 0) + size * (2 if kind == "all_reduce" else 1)
            return real(*args, **named)

        return collective

    with pytest.MonkeyPatch.context() as patch:
        for name in _COLLECTIVES:
            kind = next(kind for kind in _KINDS if name.startswith(kind))
            patch.setattr(dist, name, watched(kind, getattr(dist, name)))
        yield
