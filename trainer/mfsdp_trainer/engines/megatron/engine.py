"""The engine: the order in which Megatron FSDP's parts must be called.

`fully_shard_optimizer` of the package is not used: to make the optimizer's state it takes a step
with gradients of zero, which decays the weights and counts. The optimizer here is a plain one over
this rank's shards.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mfsdp_trainer.config import ShardingStrategy
from mfsdp_trainer.engines.base import Setup
from mfsdp_trainer.engines.common import Forward, saved_buffers
from mfsdp_trainer.optim import materialise

from .buffers import register
from .rows import require_whole_rows
from .shards import Shard, shards_of, total_norm
from .start import filled_twin, place, whole
from .wrap import Layout, units, wrap


class MegatronFsdpEngine(Forward):
    """See `Engine`."""

    def __init__(self, setup: Setup) -> None:
        model = setup.model
        layout = Layout.of(setup.sharding, setup.world)
        wrapped_units = units(model, layout.strategy)
        replicated = layout.strategy is ShardingStrategy.NO_SHARD
        if not replicated:
            require_whole_rows(model)
        twin = filled_twin(model, setup.world, setup.fill)
        place(model, twin, setup.world.device, setup.compute_dtype, memory=replicated)
        self._buffers = dict(saved_buffers(model))
        self._saves_frozen = setup.saves_frozen
        self._names = [name for name, _ in model.named_parameters()]
        self._model = model
        self._wrapped = wrap(model, setup.world, layout, wrapped_units, setup.performance)
        self._shards = {shard.name: shard for shard in shards_of(self._wrapped)}
        self._group = None if replicated else self._wrapped.dist_index.get_fsdp_group()
        for name, parameter in twin.named_parameters():
            self._shards[name].fill(whole(parameter))
        self.restored()
        self._optimizer = setup.optimizer(
            (name, self._shards[name].parameter) for name in self._names
        )
        # The twin is part of a cycle: its shards would be held until Python happens to look.
        del twin
        gc.collect()

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """See `Engine.micro_batch`."""
        self._wrapped.is_last_microbatch = last
        yield
        if last:
            self._wrapped.finish_grad_sync()
            for name, gradient in self._wrapped.param_and_grad_buffer.dist_main_grad.items():
                # Where a rank has no rows of a parameter its gradient is empty, not None: its
                # optimizer state counts steps as on the ranks that have some.
                self._shards[name].parameter.grad = gradient.to_local()

    def _forward(self, **inputs: Any) -> Tensor:
        # The answer is a tuple: in a ModelOutput the package finds no tensors to hang the end of
        # the backward pass on, where it sees to parameters without a gradient. The rest of their
        # bucket would not be reduced either.
        answer: Tensor = self._wrapped(**inputs)[0]
        return answer

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """See `Engine.evaluation`."""
        self._model.eval()
        with torch.no_grad():
            yield
        self._model.train()

    def clip(self, max_norm: float) -> float:
        """See `Engine.clip`."""
        trained = [shard.parameter for shard in self._shards.values()]
        norm = total_norm(trained, self._group)
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(trained, max_norm, norm)
        return float(norm)

    def step(self, learning_rate: float) -> None:
        """See `Engine.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._wrapped.install_optimized_model_weights()
        self._optimizer.zero_grad()
        self._wrapped.zero_grad_buffer()
        register(self._wrapped)

    def state(self) -> dict[str, Any]:
        """See `Engine.state`."""
        materialise(self._optimizer)
        shards = self._kept(trained_only=not self._saves_frozen)
        weights = {shard.name: shard.placed(shard.parameter) for shard in shards}
        return {
            "model": weights | (self._buffers if self._saves_frozen else {}),
            "optimizer": {
                shard.name: self._optimizer_state(shard)
                for shard in shards
                if self._optimizer.state.get(shard.parameter)
            },
        }

    def _kept(self, *, trained_only: bool) -> list[Shard]:
        shards = [self._shards[name] for name in self._names]
        return [s for s in shards if s.parameter.requires_grad or not trained_only]

    def _optimizer_state(self, shard: Shard) -> dict[str, Any]:
        return {
            key: value if value.dim() == 0 else shard.placed(value)
            for key, value in self._optimizer.state[shard.parameter].items()
        }

    def restored(self) -> None:
        """See `Engine.restored`: what computes is made from the masters anew."""
        self._wrapped.install_optimized_model_weights()
        self._wrapped.synchronize_param_gather()

    def full_parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See `Engine.full_parameters`."""
        for shard in self._kept(trained_only=trained_only):
            yield shard.name, shard.gather(self._group).cpu()
        for name, buffer in () if trained_only else self._buffers.items():
            yield name, buffer.detach().cpu()
