"""Bytes that one rank sends for one optimizer step.

Counted as a ring sends them: of a tensor of B bytes over N ranks, a gather or a scatter sends
B x (N-1)/N from each, a reduction that leaves the result everywhere twice that.
"""

from typing import Final

from pydantic import computed_field

from mfsdp_trainer.config import ConfigModel, Engine, ShardingStrategy

from .choices import Choice
from .facts import ModelFacts, UnitKind
from .memory import Job

_FP32: Final = 4


class Traffic(ConfigModel):
    """Bytes sent by a rank for one step."""

    all_gather: int
    reduce_scatter: int
    all_reduce: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        """All of them."""
        return self.all_gather + self.reduce_scatter + self.all_reduce


def _sent(size: float, ranks: int) -> int:
    return round(size * (ranks - 1) / ranks)


def traffic(facts: ModelFacts, job: Job, choice: Choice) -> Traffic:
    """What a step sends."""
    gradients = _FP32 * facts.elements(trained=True)
    if choice.shards == 1:
        return Traffic(
            all_gather=0, reduce_scatter=0, all_reduce=2 * _sent(gradients, choice.world)
        )
    gathers = job.element * _gathered(facts, job, choice)
    each = choice.strategy in (ShardingStrategy.OPTIM_GRADS, ShardingStrategy.OPTIM_GRADS_PARAMS)
    scatters = gradients * (job.micro_batches if each else 1)
    # Copies agree once a step, on shards.
    between: float = gradients / choice.shards
    if choice.engine is Engine.MEGATRON_FSDP and choice.strategy is ShardingStrategy.OPTIM:
        between = gradients  # the package reduces the whole buffer, of which it needs the shard
    return Traffic(
        all_gather=_sent(gathers, choice.shards),
        reduce_scatter=_sent(scatters, choice.shards),
        all_reduce=2 * _sent(between, choice.copies),
    )


def _gathered(facts: ModelFacts, job: Job, choice: Choice) -> int:
    """Elements gathered in a step."""
    root = sum(u.elements() for u in facts.units if u.kind is UnitKind.ROOT)
    rest = facts.elements() - root
    if choice.strategy is ShardingStrategy.OPTIM_GRADS_PARAMS:
        # Before the forward and before the backward pass; what is in no unit once.
        if choice.engine is Engine.MEGATRON_FSDP:
            return job.micro_batches * 2 * rest + root
        # FSDP2 keeps the head in between: the backward pass begins where the forward ends.
        ends = [u.elements() for u in facts.units if u.kind is UnitKind.END]
        head = ends[-1] if ends else 0
        return job.micro_batches * (2 * rest - head + root)
    if choice.strategy is ShardingStrategy.OPTIM_GRADS and choice.engine is Engine.TORCH_FSDP2:
        return job.micro_batches * (rest + root)
    return rest + root
