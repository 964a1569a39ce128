"""What a run on the CPU really holds and sends: to hold the plan's sums against."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer.runs import Recorder
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class Ledger(TorchDispatchMode):
    """Every storage that operations made, by what it measures now: engines shrink and regrow."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, weakref.ref[UntypedStorage]] = {}
        self.watching = False
        self.peak = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        if self.watching:
            self.peak = max(self.peak, self.now)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is None or known() is not storage:
            self._live[key] = weakref.ref(storage)

    @property
    def now(self) -> int:
        """Bytes of all that are alive."""
        storages = (reference() for reference in list(self._live.values()))
        return sum(storage.nbytes() for storage in storages if storage is not None)


def measure(world: World, config: TrainerConfig) -> Measured:
    """Two steps of training. Collective."""
    gc.collect()
    ledger = Ledger()
    found = Measured(0, 0, {})
    with ledger:
        loop, _ = build(config, world, Recorder(world.rank))
        clip = loop.engine.clip

        def look(limit: float) -> float:
            found.states = ledger.now
            return clip(limit)

        loop.engine.clip = look  # type: ignore[method-assign]
        loop._step(Position(step=0, consumed=0))
        ledger.watching = True
        with counted(found.sent):
            loop._step(Position(step=1, consumed=config.training.global_batch_size))
        ledger.watching = False
    found.peak = ledger.peak
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
