"""What engines over plain torch optimizers share: clipping, stepping, state by name."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mfsdp_trainer.data.batches import MicroBatch
from mfsdp_trainer.optim import materialise

from .base import Setup


class Forward(ABC):
    """Loss and logits from the one forward pass that a model has (`models/head.py`)."""

    @abstractmethod
    def _forward(self, **inputs: Any) -> Tensor:
        """What the model answers."""

    def loss(self, batch: MicroBatch, scale: float = 1.0) -> Tensor:
        """See `Engine.loss`."""
        return self._forward(
            input_ids=batch.inputs,
            position_ids=batch.positions,
            labels=batch.labels,
            scale=scale,
        )

    def logits(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """See `Engine.logits`."""
        return self._forward(input_ids=inputs, position_ids=positions)


class TorchEngine(Forward):
    """The half of `Engine` that is the same wherever `torch.optim` updates the model's tensors."""

    _frees_gradients = True
    """Whether there are no gradients between steps, or zeros."""

    def __init__(self, setup: Setup) -> None:
        """The model of the setup must be laid out and filled."""
        self._model = setup.model
        self._optimizer = setup.optimizer(setup.model.named_parameters())
        self._saves_frozen = setup.saves_frozen

    def clip(self, max_norm: float) -> float:
        """See `Engine.clip`."""
        return clip_gradients(self._model.parameters(), max_norm)

    def step(self, learning_rate: float) -> None:
        """See `Engine.step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=self._frees_gradients)

    def state(self) -> dict[str, Any]:
        """See `Engine.state`."""
        return training_state(self._model, self._optimizer, frozen=self._saves_frozen)

    def restored(self) -> None:
        """See `Engine.restored`: nothing to do, the tensors are the ones that train."""

    def full_parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See `Engine.full_parameters`."""
        return full_tensors(self._model, trained_only=trained_only)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Global L2 norm of the gradients before clipping to `max_norm`; 0 only measures.

    DTensor knows how its placements add up: shards are summed, replicas are not (a norm reduced
    over the replicas of hybrid sharding too would be too large by the root of their number).
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(trained, max_norm, norm)
    return float(norm)


def training_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, frozen: bool
) -> dict[str, Any]:
    """Live tensors of parameters, saved buffers and optimizer, by the model's names.

    Without `frozen` only of what is trained.
    """
    parameters = {n: p for n, p in model.named_parameters() if frozen or p.requires_grad}
    materialise(optimizer)
    return {
        "model": parameters | (dict(saved_buffers(model)) if frozen else {}),
        "optimizer": {
            name: optimizer.state[parameter]
            for name, parameter in parameters.items()
            if optimizer.state.get(parameter)
        },
    }


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that belong to the model's weights, unlike those that it computes for itself."""
    saved = model.state_dict().keys()
    return ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


@torch.no_grad()
def full_tensors(model: nn.Module, *, trained_only: bool) -> Iterator[tuple[str, Tensor]]:
    """Whole parameters in fp32 and saved buffers, one at a time, on the CPU. Collective under
    FSDP2."""
    for name, tensor in model.named_parameters():
        if trained_only and not tensor.requires_grad:
            continue
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        # Frozen ones may be held in bf16.
        yield name, whole.detach().cpu().float()
    for name, buffer in () if trained_only else saved_buffers(model):
        yield name, buffer.detach().cpu()
