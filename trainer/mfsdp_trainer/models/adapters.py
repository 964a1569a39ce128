"""Trained LoRA adapters on their way out: in peft's format, or added to the base's weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from peft import LoraConfig as PeftConfig
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from mfsdp_trainer.config.lora import LoraConfig

from .lora import ADAPTER, add_adapters, lora_layers

_BASE: Final = ".base_layer."


@dataclass(frozen=True)
class Adapters:
    """What an export needs to know of the adapters of a model, taken from the meta model."""

    config: PeftConfig
    transposed: dict[str, bool]
    """By the name of the adapted layer: whether it holds its weights the other way round."""

    @classmethod
    def of(cls, meta: PreTrainedModel, lora: LoraConfig) -> "Adapters":
        """The adapters of a model, which is given them."""
        config = add_adapters(meta, lora)
        layers: dict[str, Any] = dict(lora_layers(meta))
        return cls(config, {name: layer.fan_in_fan_out for name, layer in layers.items()})

    def merged(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Parameters under the base's names, adapters added to them; one layer held at a time.

        A layer's parameters must follow each other, its own first, as peft orders them.
        """
        held: tuple[str, Tensor] | None = None
        down: Tensor | None = None
        for name, tensor in parameters:
            layer, _, rest = name.partition(".lora_")
            if rest.startswith("A."):
                down = tensor
            elif rest.startswith("B."):
                assert held is not None
                assert down is not None
                yield held[0], held[1] + self._change(layer, down, tensor)
                held = None
            elif name.endswith(f"{_BASE}weight"):
                held = name.replace(_BASE, "."), tensor
            else:
                yield name.replace(_BASE, "."), tensor

    def _change(self, layer: str, down: Tensor, up: Tensor) -> Tensor:
        change = up @ down * (self.config.lora_alpha / self.config.r)
        return change.T if self.transposed[layer] else change

    def save(self, whole: dict[str, Tensor], directory: Path, *, base: str) -> None:
        """Write adapter_config.json and adapter_model.safetensors as peft reads them.

        `base` is where the model's own weights are.
        """
        named = {
            f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": tensor
            for name, tensor in whole.items()
        }
        save_file(named, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        # A set has another order in each process.
        self.config.target_modules = sorted(self.config.target_modules or ())
        self.config.base_model_name_or_path = base
        self.config.inference_mode = True
        self.config.save_pretrained(str(directory))
