"""One way to run beside the others: what it needs, whether that fits, and which is the least."""

from collections.abc import Iterable

from mfsdp_trainer.config import ConfigModel, Engine, ShardingStrategy

from .choices import Choice
from .facts import ModelFacts
from .gpus import Gpu
from .memory import Job, Memory, memory
from .traffic import Traffic, traffic


class Row(ConfigModel):
    """One way to run."""

    choice: Choice
    memory: Memory
    traffic: Traffic
    fits: bool
    """Whether its peak is within what tensors can have of the GPU."""

    @classmethod
    def of(cls, facts: ModelFacts, job: Job, gpu: Gpu, choice: Choice) -> "Row":
        """Add it up."""
        needed = memory(facts, job, choice)
        return cls(
            choice=choice,
            memory=needed,
            traffic=traffic(facts, job, choice),
            fits=needed.peak <= gpu.usable,
        )


def least(rows: Iterable[Row], engine: Engine | None = None) -> Row | None:
    """The first that fits from the least sharded to the most, of one engine or of all.

    The less is sharded, the less is sent; more copies send less between nodes.
    """
    order = list(ShardingStrategy)

    def sharded(row: Row) -> tuple[int, int, int]:
        return order.index(row.choice.strategy), -row.choice.replicas, row.memory.peak

    fitting = [row for row in rows if row.fits and engine in (None, row.choice.engine)]
    return min(fitting, key=sharded, default=None)
