"""The arithmetic of a step: how many sequences and tokens make one."""

from pydantic import computed_field

from mfsdp_trainer.config import ConfigModel, TrainerConfig


class Batch(ConfigModel):
    """Sequences and tokens of one optimizer step."""

    micro: int
    ranks: int
    accumulation: int
    """Micro-batches that each rank adds up."""
    length: int
    steps: int | None
    """None where the job counts epochs: the data is not looked at."""

    @classmethod
    def of(cls, config: TrainerConfig) -> "Batch":
        """What a configuration comes to."""
        return cls(
            micro=config.training.micro_batch_size,
            ranks=config.world_size,
            accumulation=config.resolve().micro_batches,
            length=config.data.sequence_length,
            steps=config.training.steps,
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sequences(self) -> int:
        """The global batch."""
        return self.micro * self.ranks * self.accumulation

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens(self) -> int:
        """Of a step, over all ranks."""
        return self.sequences * self.length
