"""What of a model is trained, and the numbers that all of it starts from."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from mfsdp_trainer.config import TrainerConfig

from .fingerprint import fingerprint
from .freeze import freeze
from .pretrained import PretrainedWeights, weight_files
from .weights import RandomWeights, Weights


@dataclass(frozen=True)
class Trained:
    """A meta model, ready for an engine."""

    model: PreTrainedModel
    weights: Weights
    base: str
    """Digest of weights that checkpoints leave out; empty where they hold everything."""


def choose_trained(config: TrainerConfig, model: PreTrainedModel) -> Trained:
    """Freeze parameters of a meta model, or give it adapters, as the configuration says.

    Raises ConfigError for names that the model does not have, DataError without weights to read.
    """
    seed, path = config.training.seed, config.model.path
    if path is None or config.model.random_init:
        freeze(model, config.training.freeze)
        return Trained(model, RandomWeights(model, seed), "")
    weights = PretrainedWeights(model, Path(path), seed)
    if config.model.lora is None:
        freeze(model, config.training.freeze)
        return Trained(model, weights, "")
    # Late: peft takes a second to import, which other runs shall not pay for.
    from .lora import AdaptedWeights, add_adapters

    add_adapters(model, config.model.lora)
    base = fingerprint(weight_files(Path(path)))
    return Trained(model, AdaptedWeights(weights, model, seed), base)
