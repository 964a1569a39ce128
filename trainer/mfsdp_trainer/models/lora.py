"""LoRA adapters in a meta model: peft's own layers, named and started as everything else here.

peft puts each adapted layer inside one of its own, which renames the layer's weights. Whoever
reads the model's directory must not notice: `without_adapters` takes peft's layers out for a while.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from peft import LoraConfig as PeftConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mfsdp_trainer.config.lora import LoraConfig
from mfsdp_trainer.errors import ConfigError, said

from .initialise import Recipes
from .weights import Weights, assign

ADAPTER: Final = "default"
"""What peft calls an adapter that has no other name."""


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> PeftConfig:
    """Give layers of a meta model their adapters; all else is frozen. What peft calls it.

    Raises ConfigError for target modules that the model does not have, or cannot have adapters.
    """
    linear = _linear_layers(model)
    _require_targets(lora.target_modules, linear)
    config = PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules or linear),
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # GPT-2's layers hold their weights the other way round: it says that it notices.
            warnings.simplefilter("ignore")
            inject_adapter_in_model(config, model, ADAPTER, low_cpu_mem_usage=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model.lora.targetModules: peft refuses them: {said(error)}") from error
    if any(isinstance(layer, ParamWrapper) for layer in lora_layers(model).values()):
        raise ConfigError(
            f"model.lora.targetModules: peft takes some for experts of {model.config.model_type}, "
            "which get no adapters here: name the layers of the attention, e.g. q_proj"
        )
    return config


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers but the head's."""
    kinds, head = (nn.Linear, Conv1D), model.get_output_embeddings()
    return [n for n, m in model.named_modules() if isinstance(m, kinds) and m is not head]


def _require_targets(targets: Iterable[str], linear: list[str]) -> None:
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"model.lora.targetModules: {target!r} is no linear layer of the model, or its "
                f"head: choose from {', '.join(known)}"
            )


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Adapted layers by their names."""
    return {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as its directory knows it: its own layers under their own names."""
    layers = lora_layers(model)
    for name, layer in layers.items():
        _put(model, name, layer.base_layer)
    try:
        yield
    finally:
        for name, layer in layers.items():
            _put(model, name, layer)


def _put(model: nn.Module, name: str, module: Any) -> None:
    owner, _, last = name.rpartition(".")
    model.get_submodule(owner)._modules[last] = module


class AdaptedWeights:
    """The base's weights from where they come, adapters from (seed, name); see `Weights`."""

    def __init__(self, base: Weights, adapted: PreTrainedModel, seed: int) -> None:
        """`base` has looked at the meta model before it was adapted."""
        self._base = base
        self._recipes = Recipes(adapted, seed, _start)

    def fill(self, model: PreTrainedModel, device: torch.device) -> None:
        """See `Weights.fill`."""
        with without_adapters(model):
            self._base.fill(model, device)
        # What has values by now stays; through the whole model, so that FSDP2 notices.
        model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                assign(parameter, self._recipes.make(name))


def _start(model: nn.Module) -> None:
    """peft's own start: one factor random, the other zero, so that adapters begin as nothing."""
    for layer in lora_layers(model).values():
        layer.reset_lora_parameters(ADAPTER, True)  # type: ignore[no-untyped-call]
