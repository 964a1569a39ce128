"""Random weights that depend on (seed, parameter name) alone.

Every world size and every engine starts from the same numbers. The distributions are the model's
own: `initialize_weights` of transformers runs once over the meta model while a dispatch mode
writes down what it would have done to each tensor; each full tensor is then made from that recipe,
one at a time, with a generator of its own, and whoever needs a slice takes it. Buffers that are
computed rather than stored (rotary frequencies, embedding scales) come from the same recipes:
after `to_empty` they would be garbage without a NaN to show it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any
from transformers import PreTrainedModel

from mfsdp_trainer.errors import ConfigError


@dataclass(frozen=True)
class _Write:
    """One in-place operation on a view of a tensor."""

    operation: OpOverload
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Recorder(TorchDispatchMode):
    """Writes down in-place operations by the storage that they write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes: defaultdict[int, list[_Write]] = defaultdict(list)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        keywords = dict(kwargs or {})
        target = args[0] if args else None
        if func._schema.is_mutable and isinstance(target, Tensor) and target.is_meta:
            self._record(func, target, args[1:], keywords)
        return func(*args, **keywords)

    def _record(
        self, func: OpOverload, target: Tensor, rest: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        if tree_any(lambda leaf: isinstance(leaf, Tensor) and leaf.is_meta, rest):
            raise ConfigError(
                f"model: its initialisation ({func}) reads other weights, which this trainer "
                "cannot do before they exist: start from model.path with weights"
            )
        self.writes[_storage(target)].append(
            _Write(
                func,
                tuple(target.size()),
                tuple(target.stride()),
                int(target.storage_offset()),
                rest,
                keywords,
            )
        )


class Recipes:
    """How to make each parameter and buffer of a meta model. Take them before sharding it."""

    def __init__(
        self,
        model: PreTrainedModel,
        seed: int,
        initialise: Callable[[PreTrainedModel], None] = PreTrainedModel.initialize_weights,
    ) -> None:
        self._seed = seed
        recorder = _Recorder()
        with recorder:
            initialise(model)
        self._shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._writes: dict[str, list[_Write]] = {}
        for name, tensor in _tensors(model):
            self._shapes[name] = (tensor.shape, tensor.dtype)
            self._writes[name] = recorder.writes[_storage(tensor)]

    def make(self, name: str) -> Tensor:
        """The full tensor of that name, on the CPU.

        Raises ConfigError where the model's initialisation leaves it untouched.
        """
        shape, dtype = self._shapes[name]
        writes = self._writes[name]
        if not writes:
            raise ConfigError(
                f"model: transformers does not initialise {name} of this model type, so it cannot "
                "start from random weights here"
            )
        full = torch.empty(shape, dtype=dtype, device="cpu")
        generator = torch.Generator().manual_seed(_seed_of(self._seed, name))
        with torch.no_grad():
            for write in writes:
                _apply(write, full, generator)
        return full


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _apply(write: _Write, full: Tensor, generator: torch.Generator) -> None:
    view = full.as_strided(write.size, write.stride, write.offset)
    keywords = dict(write.keywords)
    if any(argument.name == "generator" for argument in write.operation._schema.arguments):
        keywords["generator"] = generator
    write.operation(view, *write.arguments, **keywords)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)
