"""Training low-rank adapters in place of the model's own weights."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ConfigModel


class LoraExport(StrEnum):
    """What is exported of a model with adapters."""

    ADAPTER = "adapter"
    MERGED = "merged"


class LoraConfig(ConfigModel):
    """LoRA by peft: the model's own weights are frozen, without fp32 masters, and adapters of low
    rank beside its linear layers are trained. Checkpoints hold the adapters alone."""

    rank: int = Field(default=8, ge=1, le=4096)
    """Rank of the adapters."""
    alpha: int = Field(default=16, ge=1, le=1_000_000)
    """What adapters add is scaled by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the adapters."""
    target_modules: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        default=(), max_length=64
    )
    """Linear layers that get an adapter, by the last part of their names, e.g. q_proj; empty: all
    but the output head."""
    export: LoraExport = LoraExport.ADAPTER
    """adapter: path/export is an adapter as peft opens it, on top of model.path. merged: the whole
    model with the adapters added to its weights."""
