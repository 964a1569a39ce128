"""What the training loop asks of an engine, and what an engine is made from.

An engine owns the model and its optimizer, because both depend on how parameters are laid out. It
averages gradients over all ranks: the loop scales its loss by the world size to make that a sum.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mfsdp_trainer.config import PerformanceConfig, ResolvedSharding
from mfsdp_trainer.config.training import Precision, Recompute
from mfsdp_trainer.data.batches import MicroBatch
from mfsdp_trainer.optim import OptimizerFactory
from mfsdp_trainer.world import World


@dataclass(frozen=True)
class Setup:
    """What every engine is made from."""

    world: World
    sharding: ResolvedSharding
    precision: Precision
    performance: PerformanceConfig
    recompute: Recompute
    model: PreTrainedModel
    """On the meta device, in fp32."""
    fill: Callable[[PreTrainedModel], None]
    """Gives the model its device and its numbers; parameters may be DTensors by then."""
    optimizer: OptimizerFactory
    """Makes the optimizer from the parameters as the engine lays them out."""
    saves_frozen: bool = True
    """Whether checkpoints hold frozen parameters too: not where they are read from elsewhere."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Number format of activations and of the weights that they meet."""
        return torch.bfloat16 if self.precision is Precision.BF16 else torch.float32


class Engine(Protocol):
    """One model under one kind of data parallelism, with its optimizer."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        """Surrounds forward and backward of one micro-batch of a step.

        After the last one, and not before, gradients are averaged over all ranks.
        """

    def loss(self, batch: MicroBatch, scale: float = 1.0) -> Tensor:
        """Forward pass: `scale` x the sum of the loss over the batch's labels, a scalar in fp32.

        Call backward on the result itself. A collective where parameters are sharded.
        """

    def logits(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Tokens int64 [batch, positions] to logits [batch, positions, vocabulary], all at once.

        `positions` of the same shape restart where attention must not cross; see
        `models.head.model_inputs`.

        To compare models: training and evaluation never need them. A collective as `loss` is.
        """

    def evaluation(self) -> AbstractContextManager[None]:
        """Surrounds forward passes that are not trained on."""

    def clip(self, max_norm: float) -> float:
        """The global L2 norm of the gradients, which are then clipped to it; 0 does not clip.

        Collective; the same number on every rank.
        """

    def step(self, learning_rate: float) -> None:
        """Update the parameters and drop the gradients."""

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint holds of model and optimizer, as live tensors.

        torch.distributed.checkpoint saves them, and loads into them in place. Keys are the
        model's own names, the same under every engine.
        """

    def restored(self) -> None:
        """Called after a checkpoint was loaded into `state`."""

    def full_parameters(self, *, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters and saved buffers one by one, in fp32 on the CPU. Collective.

        Or the trained parameters alone: what is frozen is then not gathered either.
        """
