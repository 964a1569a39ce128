"""What a run leaves: the whole model, or the LoRA adapters that it trained."""

import copy
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mfsdp_trainer.checkpoint.store import explained, first_line
from mfsdp_trainer.config import ModelConfig
from mfsdp_trainer.config.lora import LoraExport
from mfsdp_trainer.engines import Engine
from mfsdp_trainer.world import World

from .model import export
from .place import export_place

if TYPE_CHECKING:
    from mfsdp_trainer.models.adapters import Adapters

Tokenizer = Callable[[], PreTrainedTokenizerBase]


def export_trained(
    engine: Engine,
    meta: PreTrainedModel,
    config: ModelConfig,
    tokenizer: Tokenizer,
    target: str,
    world: World,
    *,
    chats: bool,
) -> None:
    """Export what the configuration says, atomically; `meta` is the model without adapters.

    Collective. Raises CheckpointError on every rank.
    """
    if config.lora is None:
        export(engine.full_parameters(), meta, tokenizer, target, world, chats=chats)
        return
    # Late: peft takes a second to import.
    from mfsdp_trainer.models.adapters import Adapters

    adapters = Adapters.of(copy.deepcopy(meta), config.lora)
    if config.lora.export is LoraExport.MERGED:
        merged = adapters.merged(engine.full_parameters())
        export(merged, meta, tokenizer, target, world, chats=chats)
        return
    trained = dict(engine.full_parameters(trained_only=True))
    base = config.path or ""
    world.from_first(lambda: _write(adapters, trained, base, tokenizer, target))


def _write(
    adapters: "Adapters", trained: dict[str, Tensor], base: str, tokenizer: Tokenizer, target: str
) -> None:
    with explained(target), export_place(target) as place:
        try:
            adapters.save(trained, place.directory, base=base)
        except SafetensorError as error:
            raise OSError(errno.EIO, first_line(error), target) from error
        tokenizer().save_pretrained(place.directory)
        for file in [entry for entry in place.directory.rglob("*") if entry.is_file()]:
            place.finished(file)
        place.publish()
