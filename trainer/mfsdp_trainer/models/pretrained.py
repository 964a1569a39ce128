"""Weights from a transformers directory, streamed into shards by transformers' own loader.

Names on disk are not the model's names for every type (experts are fused, for one), so
transformers' conversion does the reading: it slices each tensor for this rank's DTensor while it
reads it. It replaces parameters, which engines would not notice; so what it read is copied into
the parameters that the engine knows.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils.loading_report import LoadStateDictInfo

from mfsdp_trainer.errors import DataError, said
from mfsdp_trainer.tensors import local

from .initialise import Recipes
from .weights import assign, materialise

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_LFS: Final = b"version https://git-lfs"
_Slots = dict[tuple[nn.Module, str], Tensor]


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory. Raises DataError if one is missing."""
    if (directory / _SINGLE).is_file():
        return [_fetched(directory / _SINGLE)]
    index = directory / _INDEX
    if not index.is_file():
        raise DataError(
            f"model.path {directory}: neither {_SINGLE} nor {_INDEX} is there: convert the weights "
            "to safetensors, or set model.randomInit to train from scratch"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{index}: not an index of safetensors files: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or not (directory / name).is_file():
            raise DataError(f"model.path {directory}: {name}, named in {_INDEX}, is missing")
    return [_fetched(directory / name) for name in names]


def _fetched(file: Path) -> Path:
    """The file, if it is more than what git keeps in place of a large one."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS))
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    if start == _LFS:
        raise DataError(f"{file}: a git LFS pointer, not weights: fetch them with git lfs pull")
    return file


class PretrainedWeights:
    """Weights from a directory; see `Weights`."""

    def __init__(self, meta: PreTrainedModel, directory: Path, seed: int) -> None:
        """Look at the meta model before it is sharded. Raises DataError without files."""
        self._directory = directory
        self._files = weight_files(directory)
        self._recipes = Recipes(meta, seed)
        conversions = get_model_conversion_mapping(meta)
        self._conversions = [
            item for item in conversions if isinstance(item, WeightRenaming | WeightConverter)
        ]

    def fill(self, model: PreTrainedModel, device: torch.device) -> None:
        """See `Weights.fill`. Raises DataError for missing, misshapen or unreadable tensors."""
        known = dict(_slots(model))
        loaded = self._load(model)
        for (module, name), tensor in known.items():
            if isinstance(tensor, nn.Parameter):
                module._parameters[name] = tensor
            else:
                module._buffers[name] = tensor
        materialise(model, device)
        self._copy(model, loaded)

    def _load(self, model: PreTrainedModel) -> _Slots:
        """What transformers reads for this rank, by where it belongs."""
        before = dict(_slots(model))
        config = LoadStateDictConfig(
            pretrained_model_name_or_path=str(self._directory),
            dtype=torch.float32,
            weight_mapping=self._conversions,
            # Sizes are checked below, where the message can name the directory.
            ignore_mismatched_sizes=True,
        )
        try:
            info, _ = model._load_pretrained_model(model, None, [*map(str, self._files)], config)
        except Exception as error:
            raise DataError(
                f"model.path {self._directory}: cannot be loaded: {said(error)}"
            ) from error
        self._require_fit(info)
        return {slot: tensor for slot, tensor in _slots(model) if tensor is not before[slot]}

    def _require_fit(self, info: LoadStateDictInfo) -> None:
        if info.mismatched_keys:
            name, found, wanted = sorted(info.mismatched_keys)[0]
            raise DataError(
                f"model.path {self._directory}: {name} is {list(found)} in the files but "
                f"{list(wanted)} by config.json"
            )
        if info.conversion_errors:
            name, problem = sorted(info.conversion_errors.items())[0]
            raise DataError(f"model.path {self._directory}: {name} cannot be converted: {problem}")

    @torch.no_grad()
    def _copy(self, model: PreTrainedModel, loaded: _Slots) -> None:
        # A tied weight is in the files under one of its names: by identity, either will do.
        by_identity = {
            id(slot_tensor): loaded[slot] for slot, slot_tensor in _slots(model) if slot in loaded
        }
        for name, tensor in model.named_parameters():
            if id(tensor) not in by_identity:
                raise DataError(
                    f"model.path {self._directory}: the files have no {name}: they are of another "
                    "model than config.json, or incomplete"
                )
            local(tensor).copy_(local(by_identity[id(tensor)]))
        for name, buffer in model.named_buffers():
            if id(buffer) in by_identity:
                buffer.copy_(by_identity[id(buffer)])
            else:
                assign(buffer, self._recipes.make(name))


def _slots(model: nn.Module) -> Iterator[tuple[tuple[nn.Module, str], Tensor]]:
    """Every place of a parameter or buffer; a tied one has two."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield (module, name), parameter
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield (module, name), buffer
