"""How many sequences an optimizer step has, and how many steps a number of sequences takes.

The size of a step follows from the sequences consumed before it: a run that goes on, on any number
of processes, has nothing to remember but its position.
"""

from pydantic import Field

from .base import ConfigModel


class BatchRamp(ConfigModel):
    """Smaller global batches at the start (Megatron's rampup-batch-size): from start, increment
    more in each stage, up to globalBatchSize."""

    start: int = Field(ge=1, le=16_777_216)
    """Sequences in the first optimizer steps; a multiple of microBatchSize x nodes x
    procsPerNode."""
    increment: int = Field(ge=1, le=16_777_216)
    """Sequences that each stage adds; a multiple of the same."""
    sequences: int = Field(ge=1, le=1_000_000_000_000)
    """Sequences after which globalBatchSize is reached; stages share them equally."""

    def stages(self, full: int) -> int:
        """Stages before the batch of `full` sequences is reached."""
        return (full - self.start) // self.increment


def batch_at(full: int, ramp: BatchRamp | None, consumed: int) -> int:
    """Sequences of the step after `consumed` ones, where `full` is the size in the end."""
    if ramp is None or consumed >= ramp.sequences:
        return full
    return ramp.start + consumed * ramp.stages(full) // ramp.sequences * ramp.increment


def steps_until(full: int, ramp: BatchRamp | None, sequences: int) -> int:
    """The fewest steps that consume at least that many sequences."""
    steps, consumed = 0, 0
    while ramp is not None and consumed < min(sequences, ramp.sequences):
        size = batch_at(full, ramp, consumed)
        stages = ramp.stages(full)
        following = consumed * stages // ramp.sequences + 1
        end = min(sequences, -(-following * ramp.sequences // stages))
        taken = -((consumed - end) // size)
        steps, consumed = steps + taken, consumed + taken * size
    return steps - min(0, (consumed - sequences) // full)
