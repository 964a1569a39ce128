"""What the arithmetic has to know of a model: its tensors by unit, and what computing with it
needs."""

from enum import StrEnum

from mfsdp_trainer.config import ConfigModel
from mfsdp_trainer.config.training import Recompute


class UnitKind(StrEnum):
    """Which part of the model is gathered and reduced together."""

    LAYER = "layer"
    """A decoder layer."""
    END = "end"
    """Input embedding or output head, where they are two weights."""
    ROOT = "root"
    """What is in none of the others: the last norm, an embedding that is the head too."""


class TensorFacts(ConfigModel):
    """Parameters of one shape."""

    rows: int
    """Size of the first dimension, which is what FSDP2 shards."""
    row: int
    """Elements of a row."""
    count: int
    """How many there are of this shape in the unit."""
    trained: bool = True
    """Whether they have gradients; the frozen ones of a LoRA run have none."""

    @property
    def elements(self) -> int:
        """Numbers in all of them."""
        return self.rows * self.row * self.count

    def shard(self, ranks: int) -> int:
        """Elements of the largest of `ranks` even shards of all of them."""
        return -(-self.rows // ranks) * self.row * self.count


class UnitFacts(ConfigModel):
    """A unit, or several of the same shapes."""

    kind: UnitKind
    count: int
    tensors: tuple[TensorFacts, ...]

    def elements(self, *, trained: bool = False) -> int:
        """Numbers in one such unit; with `trained`, of those only the ones with gradients."""
        return sum(t.elements for t in self.tensors if t.trained or not trained)


class Compute(StrEnum):
    """How the number format of the computation comes about."""

    FP32 = "fp32"
    CAST = "cast"
    """bf16 weights, gathered or kept so: FSDP2 and Megatron FSDP."""
    AUTOCAST = "autocast"
    """fp32 weights that are cast where they are used: DDP."""


class WorkFacts(ConfigModel):
    """Bytes that one micro-batch needs beside weights and gradients."""

    activations: int
    """Kept from the forward pass for the backward pass, as the decoder ends."""
    weight_copies: int
    """Weights in another number format among what is kept: autocast's."""
    peak: int
    """The most at any time of forward and backward: activations, logits and loss, gradients of
    activations; without `weight_copies`."""


class WorkCase(ConfigModel):
    """The work under one way of computing."""

    micro_batch: int
    """Sequences."""
    compute: Compute
    recompute: Recompute
    work: WorkFacts


class ModelFacts(ConfigModel):
    """All that there is to know."""

    model_type: str
    tied: bool
    """Whether embedding and head are one weight."""
    units: tuple[UnitFacts, ...]
    """In the order in which they compute."""
    work: tuple[WorkCase, ...]
    untraced: str | None = None
    """Why `work` is empty, if it is: the first line of what the model raised."""

    def elements(self, *, trained: bool = False) -> int:
        """Numbers in the model; with `trained`, only those with gradients."""
        return sum(unit.count * unit.elements(trained=trained) for unit in self.units)

    def shard(self, ranks: int, *, trained: bool = False) -> int:
        """Elements of the largest of `ranks` shards of every tensor."""
        return sum(
            unit.count * tensor.shard(ranks)
            for unit in self.units
            for tensor in unit.tensors
            if tensor.trained or not trained
        )

    def work_of(self, micro_batch: int, compute: Compute, recompute: Recompute) -> WorkFacts | None:
        """The work under one way of computing, None if it could not be traced.

        Raises KeyError for a case that nobody asked for.
        """
        if self.untraced is not None:
            return None
        cases = {(c.micro_batch, c.compute, c.recompute): c.work for c in self.work}
        return cases[micro_batch, compute, recompute]
