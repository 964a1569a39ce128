"""A transformers causal LM on the meta device, and the parts of it that engines care about.

Nothing here allocates weights: engines shard the meta model first and fill it after
(`initialise.py`, `pretrained.py`).
"""

import copy
import difflib
import inspect
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from mfsdp_trainer.config import ModelConfig
from mfsdp_trainer.config.performance import Attention
from mfsdp_trainer.data.vocabulary import Vocabulary
from mfsdp_trainer.errors import ConfigError, DataError, said

_COMPUTATION: Final = (
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_experts_per_tok", "hidden_act", "activation_function"),
)

_ELSEWHERE: Final = dict.fromkeys(
    ("attn_implementation", "_attn_implementation"), "set performance.attention in its place"
)
_PRECISION: Final = "training.precision says what is computed in, and exports are fp32"
_WITHOUT_EFFECT: Final = {
    "torch_dtype": _PRECISION,
    "dtype": _PRECISION,
    "router_aux_loss_coef": "this trainer does not add the routers' auxiliary loss",
}
"""Settings that models in the wild carry and that nothing here reads."""

_log = logging.getLogger(__name__)


def read_config(model: ModelConfig, vocabulary: Vocabulary) -> PreTrainedConfig:
    """The transformers configuration of the model to train.

    Raises ConfigError for settings that do not exist or do not fit the tokenizer, DataError for a
    directory that cannot be read.
    """
    if model.config is not None:
        config = _from_settings(model.config, vocabulary)
    else:
        config = from_directory(Path(model.path or ""))
    if model.path is not None and not model.random_init:
        _require_plain_weights(config, model.path)
    if config.vocab_size < vocabulary.size:
        where = "model.config.vocab_size" if model.path is None else f"{model.path}/config.json"
        raise ConfigError(
            f"{where}: vocab_size {config.vocab_size} is smaller than the tokenizer's "
            f"{vocabulary.size} tokens: raise vocab_size or use the model's own tokenizer"
        )
    if getattr(config, "output_router_logits", False):
        raise ConfigError(
            "model: output_router_logits asks for the routers' auxiliary loss, which this trainer "
            "does not add: set output_router_logits to false"
        )
    return config


def _require_plain_weights(config: PreTrainedConfig, path: str) -> None:
    """Quantised numbers mean nothing without their scales, which are not read here."""
    quantized = getattr(config, "quantization_config", None)
    if quantized is not None:
        kind = quantized.get("quant_method") if isinstance(quantized, dict) else None
        raise DataError(
            f"model.path {path}: its weights are quantized ({kind or 'quantization_config'}): use "
            "the model's bf16 or fp32 weights, without quantization_config in config.json"
        )


def computation(config: PreTrainedConfig) -> list[object]:
    """What decides, beside the parameters' shapes, what a model computes with them."""
    return [getattr(config, name, None) for name in _COMPUTATION]


def _from_settings(settings: dict[str, Any], vocabulary: Vocabulary) -> PreTrainedConfig:
    settings = copy.deepcopy(settings)
    kind = settings.pop("model_type")
    try:
        known = AutoConfig.for_model(kind)
    except ValueError as error:
        raise ConfigError(
            f"model.config.model_type: transformers knows no model type {kind!r}"
        ) from error
    _check_names(settings, known, kind)
    settings.setdefault("vocab_size", vocabulary.size)
    for name in ("bos_token_id", "eos_token_id"):
        settings.setdefault(name, vocabulary.end)
    settings.setdefault("pad_token_id", None)
    try:
        return AutoConfig.for_model(kind, **settings)
    except Exception as error:
        raise ConfigError(f"model.config: transformers refuses it: {said(error)}") from error


def _check_names(settings: dict[str, Any], known: PreTrainedConfig, kind: str) -> None:
    """transformers takes any name in silence: a misspelt one would train the default.

    Names like none of the type's own are let through with a warning: models in the wild carry
    settings that their type does not declare.
    """
    names = set(known.to_dict()) | set(known.attribute_map) | _names_in_code(known)
    for name in settings:
        if name in _ELSEWHERE:
            raise ConfigError(f"model.config.{name}: {_ELSEWHERE[name]}")
        if name in _WITHOUT_EFFECT:
            _log.warning("model.config.%s has no effect: %s", name, _WITHOUT_EFFECT[name])
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if near:
            raise ConfigError(
                f"model.config.{name} is not a setting of model type {kind}: did you mean "
                f"{near[0]}?"
            )
        _log.warning("model.config.%s is not a known setting of model type %s", name, kind)


def _names_in_code(known: PreTrainedConfig) -> set[str]:
    """Settings that a model's code reads, some of which its configuration does not declare."""
    names = {"rope_theta", "rope_scaling", "torch_dtype"}
    model = AutoModelForCausalLM._model_mapping.get(type(known), None)
    if model is not None:
        code = inspect.getsource(sys.modules[model.__module__])
        names |= set(re.findall(r"\bconfig\.(\w+)", code))
        names |= set(re.findall(r"config, \"(\w+)\"", code))
    return names


def from_directory(directory: Path) -> PreTrainedConfig:
    """The configuration in a model directory. Raises DataError in one line."""
    file = directory / "config.json"
    if not directory.is_dir():
        raise DataError(f"model.path {directory}: no such directory in the container")
    if not file.is_file():
        raise DataError(f"model.path {directory}: it has no config.json")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: not JSON: {error.msg}") from error
    except Exception as error:
        raise DataError(f"{file}: transformers cannot read it: {said(error)}") from error
    return config


def build_meta(config: PreTrainedConfig, attention: Attention | None = None) -> PreTrainedModel:
    """The model in fp32 on the meta device: shapes and ties, no memory.

    Raises ConfigError where transformers cannot build a causal LM from the configuration, or not
    with that attention.
    """
    config = copy.deepcopy(config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise ConfigError(
            f"model: transformers cannot build a causal language model of type "
            f"{config.model_type} from this configuration: {said(error)}"
        ) from error
    if attention is not None:
        _attend(model, attention)
    model.train()
    return model


def _attend(model: PreTrainedModel, attention: Attention) -> None:
    """Choose an implementation of attention. Raises ConfigError where it cannot be had."""
    start = f"performance.attention {attention}: transformers cannot use it here for"
    try:
        model.set_attn_implementation(attention.value)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{start} {model.config.model_type}: {said(error)}") from error
    # A model that cannot change is left as it was, with a warning alone.
    if model.config._attn_implementation != attention:
        raise ConfigError(
            f"{start} {model.config.model_type}, which has {model.config._attn_implementation} "
            "built in: leave performance.attention out"
        )


def decoder_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks: elements of the outermost module lists, which engines shard by."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from decoder_layers(child)


def is_tied(model: PreTrainedModel) -> bool:
    """Whether input embedding and output head are one parameter."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def parameter_count(model: nn.Module, *, trained_only: bool = False) -> int:
    """Numbers of the whole model; tied ones count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained_only)
