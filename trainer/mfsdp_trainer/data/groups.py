"""Which sources are read as one stream of tokens, and what becomes of each stream."""

from dataclasses import dataclass
from pathlib import Path

from mfsdp_trainer.config import DataConfig, DataSource
from mfsdp_trainer.config.data import DataFormat

from .megatron import dataset_files
from .sources import source_files


@dataclass(frozen=True)
class Group:
    """Sources whose documents follow each other."""

    sources: tuple[DataSource, ...]
    held_out: float
    """Share of the documents that is for evaluation: 1 for sources of data.validation."""
    weight: int | None = None
    """Its part of a blend; None where sources have no weights."""

    @property
    def megatron(self) -> DataSource | None:
        """The Megatron dataset that it is, if it is one: used in place, it is alone."""
        (first, *_) = self.sources
        return first if first.format is DataFormat.MEGATRON else None

    def files(self) -> list[Path]:
        """Every file that is read."""
        if self.megatron is not None:
            return dataset_files(self.megatron)
        return [file for source in self.sources for file in source_files(source)]


def groups(data: DataConfig) -> list[Group]:
    """The groups of a run: those that are trained on, then those of data.validation."""
    fraction = 0.0 if data.validation else data.validation_fraction
    if any(source.weight is not None for source in data.sources):
        trained = [Group((source,), fraction, source.weight) for source in data.sources]
    else:
        trained = _without_weights(data.sources, fraction)
    return trained + _without_weights(data.validation, 1.0)


def _without_weights(sources: tuple[DataSource, ...], held_out: float) -> list[Group]:
    """What is tokenised here is one group, each Megatron dataset one of its own."""
    tokenised = tuple(s for s in sources if s.format is not DataFormat.MEGATRON)
    others = [s for s in sources if s.format is DataFormat.MEGATRON]
    first = [Group(tokenised, held_out)] if tokenised else []
    return first + [Group((source,), held_out) for source in others]
