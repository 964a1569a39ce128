"""The finished model as transformers' from_pretrained opens it, without this package."""

import errno
import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from mfsdp_trainer.checkpoint.store import explained, first_line
from mfsdp_trainer.engines.common import saved_buffers
from mfsdp_trainer.world import World

from .generation import stop_after_turns
from .place import export_place

SHARD_BYTES: Final = 1 << 31
"""Size of the exported files of weights, and so of what rank 0 holds at a time; a layer is never
divided, so more where one is larger."""


def export(
    parameters: Iterable[tuple[str, Tensor]],
    model: PreTrainedModel,
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    target: str,
    world: World,
    *,
    chats: bool = False,
) -> None:
    """Write weights in fp32, config, tokenizer and generation config to `target`, atomically.

    `parameters` come one by one, collectively; `model` is the model on the meta device;
    `tokenizer` is called on rank 0, which writes, and holds one file of weights at a time. A model
    that was trained on `chats` generates until its turn is over. Collective. Raises
    CheckpointError on every rank.
    """
    with ExitStack() as stack:
        writing = _Writing(model, target)
        world.from_first(lambda: writing.begin(stack, tokenizer(), chats=chats))
        for name, tensor in parameters:
            if world.is_first:
                writing.add(name, tensor)
        world.from_first(writing.finish)


class _Writing:
    """An export while the weights come in. On rank 0; others never call it."""

    def __init__(self, model: PreTrainedModel, target: str) -> None:
        weights = [*model.named_parameters(), *saved_buffers(model)]
        sizes = [(name, tensor.numel() * 4) for name, tensor in weights]
        self._model = model
        self._target = target
        self._shards = shards(sizes, SHARD_BYTES)
        self._number = 0
        self._held: dict[str, Tensor] = {}
        self._map: dict[str, str] = {}
        self._bytes = 0
        self._error: OSError | None = None

    def begin(self, stack: ExitStack, tokenizer: PreTrainedTokenizerBase, *, chats: bool) -> None:
        """Write all but the weights. Raises CheckpointError."""
        with explained(self._target):
            self._place = stack.enter_context(export_place(self._target))
            model, directory = self._model, self._place.directory
            model.config.dtype = "float32"
            model.config.architectures = [type(model).__name__]
            model.config.save_pretrained(directory)
            if model.generation_config is not None:
                if chats:
                    stop_after_turns(model.generation_config, tokenizer)
                model.generation_config.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            for file in [entry for entry in directory.rglob("*") if entry.is_file()]:
                self._place.finished(file)

    def add(self, name: str, tensor: Tensor) -> None:
        """Take in the next weight. An error waits for `finish`: others are in a collective."""
        if self._error is not None:
            return
        self._held[name] = tensor
        if len(self._held) < len(self._shards[self._number]):
            return
        held, self._held = self._held, {}
        self._number += 1
        try:
            self._write_shard(held)
        except OSError as error:
            self._error = error
        except SafetensorError as error:
            self._error = OSError(errno.EIO, first_line(error), self._target)

    def _write_shard(self, held: dict[str, Tensor]) -> None:
        # Names and shapes on disk are not the model's for every type: experts are fused, for one.
        on_disk: dict[str, Tensor] = revert_weight_conversion(self._model, held)
        ignored = self._model._keys_to_ignore_on_save or ()
        on_disk = {n: tensor.contiguous() for n, tensor in on_disk.items() if n not in ignored}
        count = len(self._shards)
        name = f"model-{self._number:05}-of-{count:05}.safetensors"
        name = SAFE_WEIGHTS_NAME if count == 1 else name
        save_file(on_disk, self._place.directory / name, metadata={"format": "pt"})
        self._map |= dict.fromkeys(on_disk, name)
        self._bytes += sum(tensor.nbytes for tensor in on_disk.values())
        self._place.finished(self._place.directory / name)

    def finish(self) -> None:
        """Publish. Raises CheckpointError for what went wrong on the way, too."""
        with explained(self._target):
            if self._error is not None:
                raise self._error
            if len(self._shards) > 1:
                file = self._place.directory / SAFE_WEIGHTS_INDEX_NAME
                file.write_text(json.dumps(self._index(), indent=2) + "\n", encoding="utf-8")
                self._place.finished(file)
            self._place.publish()

    def _index(self) -> dict[str, Any]:
        facts = {"total_parameters": self._bytes // 4, "total_size": self._bytes}
        return {"metadata": facts, "weight_map": dict(sorted(self._map.items()))}


def shards(sizes: Iterable[tuple[str, int]], limit: int) -> list[list[str]]:
    """Names, in order, divided into files of at most `limit` bytes, but never within a layer."""
    files: list[list[str]] = [[]]
    room = limit
    for _, layer in groupby(sizes, key=lambda weight: _layer(weight[0])):
        weights = list(layer)
        size = sum(size for _, size in weights)
        if size > room and files[-1]:
            files.append([])
            room = limit
        files[-1] += [name for name, _ in weights]
        room -= size
    return files


def _layer(name: str) -> str:
    """A weight's name up to its first number: the same for all weights of one decoder layer."""
    parts = name.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: number + 1])
