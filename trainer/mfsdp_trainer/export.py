"""The finished model as transformers' from_pretrained opens it, without this package."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .checkpoint.directory import explained
from .engines import Engine
from .files import publish_directory, scratch_directory
from .world import World


def export(
    engine: Engine,
    model: PreTrainedModel,
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    target: Path,
    world: World,
) -> None:
    """Write weights in fp32, config, tokenizer and generation config to `target`, atomically.

    `model` is the model on the meta device; `tokenizer` is called on rank 0, which writes and
    holds the whole model meanwhile. Collective. Raises CheckpointError on every rank.
    """
    whole: dict[str, Tensor] = {}
    for name, tensor in engine.full_parameters():
        if world.is_first:
            whole[name] = tensor
    world.from_first(lambda: _write(model, tokenizer(), whole, target))


def _write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    whole: dict[str, Tensor],
    target: Path,
) -> None:
    with explained(target), scratch_directory(target) as scratch:
        model.save_pretrained(scratch, state_dict=whole)
        tokenizer.save_pretrained(scratch)
        for file in scratch.iterdir():
            # safetensors lets the owner alone read: not what a model on a shared volume is for.
            file.chmod(0o644)
        publish_directory(scratch, target)
