"""Memory of one rank under one engine and strategy.

What each engine keeps, and when, is written down in its module under `engines/`; the sums here
are held against measured runs by tests/trainer/plan.
"""

from itertools import pairwise
from typing import Final

from pydantic import computed_field

from mfsdp_trainer.config import ConfigModel, Engine, ShardingStrategy
from mfsdp_trainer.config.training import Precision, Recompute

from .choices import Choice
from .facts import Compute, ModelFacts, UnitKind, WorkFacts

_FP32: Final = 4


class Job(ConfigModel):
    """What of a job decides its memory, beside engine and strategy."""

    precision: Precision
    micro_batch: int
    """Sequences that a rank computes at a time."""
    micro_batches: int
    moments: int = 2
    """Numbers in fp32 that the optimizer keeps of each trained one: two of AdamW."""
    recompute: Recompute = Recompute.NONE

    @property
    def element(self) -> int:
        """Bytes of a number of the computation."""
        return 2 if self.precision is Precision.BF16 else 4


class Memory(ConfigModel):
    """Bytes of one rank, the one with the largest shards."""

    parameters: int
    """fp32 masters, and the copies that compute where these are kept for the whole run."""
    gradients: int
    """As the last backward pass ends."""
    optimizer: int
    gathered: int
    """Weights made whole, or cast, for a while."""
    reducing: int
    """Whole gradients on their way to the ranks that keep them."""
    carried: int
    """Gradients that are there as the last backward pass begins."""
    work: WorkFacts | None
    """Activations, logits and what computing needs; None if unknown."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def states(self) -> int:
        """Model states: what a strategy shards."""
        return self.parameters + self.gradients + self.optimizer

    @computed_field  # type: ignore[prop-decorator]
    @property
    def peak(self) -> int:
        """The most at one time: less than all together, for gradients come as activations go."""
        kept = self.parameters + self.optimizer + self.gathered
        end = max(self.gradients, self.carried) + self.reducing
        if self.work is None:
            return kept + end
        begin = self.carried + max(self.work.peak, self.work.activations + self.reducing)
        return kept + max(begin, end)


def compute_of(engine: Engine, precision: Precision) -> Compute:
    """How an engine comes by its number format."""
    if precision is Precision.FP32:
        return Compute.FP32
    return Compute.AUTOCAST if engine is Engine.DDP else Compute.CAST


def memory(facts: ModelFacts, job: Job, choice: Choice) -> Memory:
    """Bytes of the fullest rank."""
    work = facts.work_of(job.micro_batch, compute_of(choice.engine, job.precision), job.recompute)
    if choice.engine is Engine.DDP:
        return _ddp(facts, job, work)
    if choice.engine is Engine.TORCH_FSDP2:
        return _fsdp2(facts, job, choice, work)
    return _megatron(facts, job, choice, work)


def _ddp(facts: ModelFacts, job: Job, work: WorkFacts | None) -> Memory:
    whole, trained = facts.elements(), facts.elements(trained=True)
    # There always, also between steps.
    buckets = _FP32 * trained
    return Memory(
        parameters=_FP32 * trained + job.element * (whole - trained),
        gradients=buckets,
        optimizer=job.moments * _FP32 * trained,
        gathered=work.weight_copies if work else 0,
        reducing=0,
        carried=buckets,
        work=work,
    )


def _fsdp2(facts: ModelFacts, job: Job, choice: Choice, work: WorkFacts | None) -> Memory:
    whole, trained = facts.elements(), facts.elements(trained=True)
    shard = facts.shard(choice.shards)
    trained_shard = facts.shard(choice.shards, trained=True)
    whole_gradients = choice.strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.OPTIM)
    added_up = trained if whole_gradients else trained_shard
    if choice.strategy is ShardingStrategy.OPTIM_GRADS_PARAMS:
        gathered = _root(facts) + _window(facts)
    else:
        # Over one rank too: what computes is a copy, in fp32 as well.
        gathered = whole
    unit = _largest(facts)
    return Memory(
        # What is frozen has no masters.
        parameters=_FP32 * trained_shard + job.element * (shard - trained_shard),
        gradients=_FP32 * trained_shard,
        optimizer=job.moments * _FP32 * trained_shard,
        gathered=job.element * gathered,
        reducing=(job.element + _FP32) * unit,
        carried=_FP32 * added_up if job.micro_batches > 1 else 0,
        work=work,
    )


def _megatron(facts: ModelFacts, job: Job, choice: Choice, work: WorkFacts | None) -> Memory:
    # Over one rank nothing is sharded: the engine takes that for no_shard.
    strategy = choice.strategy if choice.shards > 1 else ShardingStrategy.NO_SHARD
    whole, trained = facts.elements(), facts.elements(trained=True)
    shard = facts.elements() / choice.shards
    trained_shard = trained / choice.shards
    params_sharded = strategy is ShardingStrategy.OPTIM_GRADS_PARAMS
    grads_sharded = params_sharded or strategy is ShardingStrategy.OPTIM_GRADS
    computing = job.element * (shard if params_sharded else whole)
    # fp32 weights are their own masters.
    masters = 0 if job.precision is Precision.FP32 else _FP32 * trained_shard
    gradients = round(_FP32 * (trained_shard if grads_sharded else trained))
    return Memory(
        parameters=round(computing + masters),
        gradients=gradients,
        optimizer=round(job.moments * _FP32 * trained_shard),
        gathered=job.element * (_root(facts) + _window(facts)) if params_sharded else 0,
        reducing=_FP32 * _window(facts, trained=True) if grads_sharded else 0,
        carried=gradients,
        work=work,
    )


def _root(facts: ModelFacts) -> int:
    """Elements of what is in no layer: gathered once, kept through a micro-batch."""
    return sum(u.elements() for u in facts.units if u.kind is UnitKind.ROOT)


def _sizes(facts: ModelFacts, *, trained: bool = False) -> list[int]:
    """Elements of the units that come and go, in order; of equal neighbours two suffice."""
    units = [unit for unit in facts.units if unit.kind is not UnitKind.ROOT]
    return [unit.elements(trained=trained) for unit in units for _ in range(min(unit.count, 2))]


def _window(facts: ModelFacts, *, trained: bool = False) -> int:
    """Elements of the two neighbours that are whole at a time: one computes, one comes."""
    sizes = _sizes(facts, trained=trained)
    return max((a + b for a, b in pairwise(sizes)), default=sum(sizes))


def _largest(facts: ModelFacts) -> int:
    """Elements with gradients of the largest unit."""
    return max(unit.elements(trained=True) for unit in facts.units)
