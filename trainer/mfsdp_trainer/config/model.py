"""Which model is trained: a transformers causal language model, from a directory or from a
config."""

from typing import Any

from pydantic import model_validator

from .base import ConfigModel, PathText
from .lora import LoraConfig
from .plain import not_finite


class ModelConfig(ConfigModel):
    """A Hugging Face transformers causal language model; exactly one of path and config."""

    path: PathText | None = None
    """Local directory with a transformers model: config.json, and safetensors to start from."""
    config: dict[str, Any] | None = None
    """A transformers configuration, e.g. {model_type: llama, hidden_size: 256, ...}: the model
    starts from random
    weights that depend on training.seed and the parameters' names only. vocab_size defaults to the
    tokenizer's."""
    random_init: bool = False
    """With path: take the architecture only and start from random weights."""
    lora: LoraConfig | None = None
    """Train LoRA adapters on top of the weights in path; unset: train the weights themselves."""

    @model_validator(mode="after")
    def _one_source(self) -> "ModelConfig":
        if (self.path is None) == (self.config is None):
            raise ValueError("set exactly one of model.path and model.config")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError(
                "model.config.model_type must name a transformers model type, e.g. llama"
            )
        if self.lora is not None and (self.path is None or self.random_init):
            raise ValueError(
                "model.lora needs weights to adapt: set model.path, without randomInit, or drop "
                "lora"
            )
        if (path := not_finite(self.config)) is not None:
            name = ".".join(map(str, path))
            raise ValueError(f"model.config.{name} must be a finite number")
        return self
