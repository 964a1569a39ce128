"""Whether a model can compute at all, found out before any weight is read or any GPU is warm.

transformers builds models whose first forward pass must fail: heads that do not divide, fewer
positions than a sequence has. Found there it would look like a crash, and be tried again.
"""

import re
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from mfsdp_trainer.errors import ConfigError, one_line

from .architecture import build_meta

_SHAPES: Final = re.compile(r"\b(sizes?|shapes?|dimensions?)\b", re.IGNORECASE)
_POSITIONS: Final = re.compile(r"(^|[._])(wpe|pos\w*|\w+_positions?|position\w*)($|[._])")
_PROBE: Final = 8
"""Tokens of the trial: what fits together for a few fits for many."""


def require_fit(config: PreTrainedConfig, sequence_length: int) -> None:
    """Raises ConfigError where the model's parts do not fit each other or the sequences."""
    # A model of its own: some keep what they computed.
    model = build_meta(config)
    _require_positions(model, sequence_length)
    model.set_attn_implementation("eager")  # others do not look at shapes on the meta device
    tokens = torch.zeros(1, min(_PROBE, sequence_length), dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            # Without a mask transformers looks for packed documents in the values.
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    except (RuntimeError, TypeError, ValueError) as error:
        # Of any other kind: a model that needs values. Only its first step can tell.
        if isinstance(error, RuntimeError) and _SHAPES.search(str(error)):
            raise ConfigError(
                f"model: {config.model_type} cannot compute with this configuration: its sizes do "
                f"not fit each other: {one_line(str(error), 300)}"
            ) from error


def _require_positions(model: PreTrainedModel, sequence_length: int) -> None:
    """A table of learned positions ends; models that rotate go on."""
    declared = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(declared, int) or sequence_length <= declared:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.search(name):
            raise ConfigError(
                f"data.sequenceLength {sequence_length} is longer than the {declared} positions "
                "that the model has: shorten it, or raise max_position_embeddings (n_positions) of "
                "a model that starts from random weights"
            )
