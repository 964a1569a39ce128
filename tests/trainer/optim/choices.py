"""Engines by a short name, and the models that tests of the optimisation start from."""

from pathlib import Path
from typing import Any

import torch
from tests.trainer.megatron.runs import ODD, megatron
from tests.trainer.runs import configuration
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig


def configured(engine: str, text: Path, checkpoints: Path, **choice: Any) -> TrainerConfig:
    """`ddp`, `fsdp2/STRATEGY` or `megatron/STRATEGY`; see `configuration`."""
    kind, _, strategy = engine.partition("/")
    make = megatron if kind == "megatron" else configuration
    return make(text, checkpoints, strategy=strategy or kind, **choice)


def saved_model(directory: Path, *, tied: bool) -> Path:
    """A model of sizes that ranks do not share evenly, in a directory."""
    torch.manual_seed(7)
    settings = {**ODD, "tie_word_embeddings": tied}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).save_pretrained(directory)
    return directory
