"""Whether a checkpoint goes with the model, tokenizer and data of a run."""

from mfsdp_trainer.errors import ConfigError

from .manifest import Identity

ORDER: str = (
    "%s was trained on other data, seed or sequence length: the data goes on from the same "
    "position of a new order"
)


def require_same(saved: Identity, ours: Identity, where: str, field: str) -> None:
    """Refuse weights of another model or tokenizer. Raises ConfigError naming the field."""
    if saved.parameters != ours.parameters:
        raise ConfigError(
            f"{field}: {where} is of a model with other parameters: choose another path, or the "
            "model it was trained with"
        )
    if saved.architecture and saved.architecture != ours.architecture:
        raise ConfigError(
            f"{field}: {where} is of a model with the same parameters but other heads, experts, "
            "activation or LoRA alpha: choose another path, or the model it was trained with"
        )
    if saved.base != ours.base:
        raise ConfigError(
            f"model.path: {where} holds LoRA adapters of other weights: start from the model that "
            "they were trained on, or choose another path"
        )
    if saved.tokenizer != ours.tokenizer:
        raise ConfigError(
            f"{field}: {where} was trained with another tokenizer: choose another path, or the "
            "data.tokenizer it was trained with"
        )


def require_same_state(saved: Identity, ours: Identity, where: str) -> None:
    """Refuse the state of another optimizer, or of other trained parameters."""
    if saved.optimizer != ours.optimizer:
        raise ConfigError(
            f"training.optimizer: {where} was trained by {saved.optimizer}, this run has "
            f"{ours.optimizer}: go on with the same optimizer and momentum, or choose another "
            "checkpoint.path"
        )
    if saved.frozen != ours.frozen:
        raise ConfigError(
            f"training.freeze: {where} was trained with other parameters frozen: go on with the "
            "same patterns, or choose another checkpoint.path"
        )
