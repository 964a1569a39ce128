"""Whether a model keeps its attention inside documents, found out by trying it.

transformers does it for most models if they are called as `models.head.model_inputs` says. Some
types do not look at positions (BLOOM, MPT, OPT, gpt-oss), some carry a state along that knows no
documents (Mamba, gated delta nets, short convolutions), and an attention implementation may pack
only some shapes. All of that is silent: so the engine itself, in the shape of a micro-batch, is
given two sequences that differ in their first document alone.
"""

import logging
import math
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from .config.training import Precision
from .data.batches import MicroBatch
from .engines import Engine
from .errors import ConfigError
from .evaluation import evaluate
from .models.loss import IGNORE
from .world import World

_log = logging.getLogger(__name__)

_STATEFUL: Final = ("conv", "hybrid", "hybrid_sliding", "linear_attention")
"""Types of layer, in transformers' words, that know no documents."""
_LABELS: Final = 4
"""Tokens after the border whose loss is compared: those that would see most of the other side."""
_TRIALS: Final = 2
"""With other tokens each: a difference may be small by chance."""
_NONE: Final = 1e-7
"""Nats a token that are no difference. Dense models have none at all."""
_NOISE: Final = {Precision.FP32: 1e-3, Precision.BF16: 0.25}
"""What may be left of the difference that attention across documents makes: experts that are given
other tokens round otherwise."""


def require_attention(model: PreTrainedModel) -> None:
    """Raises ConfigError for layers that carry a state past the end of a document.

    What a short convolution lets through is too little for a trial to tell it from rounding.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    others = sorted({kind for kind in kinds if kind in _STATEFUL})
    if not others and any(isinstance(module, nn.Conv1d) for module in model.modules()):
        others = ["convolution"]
    if others:
        raise _refusal(f"has layers that are not attention ({', '.join(others)})", model.config)


def require_separate_documents(
    engine: Engine,
    model: PreTrainedConfig,
    world: World,
    precision: Precision,
    *,
    size: int,
    length: int,
) -> None:
    """Raises ConfigError if a document's loss depends on the document before. Collective.

    `size` sequences of `length` tokens are what a micro-batch of the run has.
    """
    vocabulary = model.get_text_config().vocab_size

    def difference(*, packed: bool) -> float:
        trials = (_trial(seed, vocabulary, size, length, packed) for seed in range(_TRIALS))
        return sum(
            abs(evaluate(engine, [first], world) - evaluate(engine, [second], world))
            for first, second in trials
        )

    kept = difference(packed=True)
    if not math.isfinite(kept):
        # Not for this to say: the first such step ends the run.
        _log.warning("packing could not be tried: the loss of random tokens is not finite")
    elif kept > _NONE and kept > _NOISE[precision] * difference(packed=False):
        raise _refusal("sees the documents before its own (it does not go by positions)", model)


def _trial(
    seed: int, vocabulary: int, size: int, length: int, packed: bool
) -> tuple[MicroBatch, MicroBatch]:
    """Two batches of two documents a sequence that differ in the first ones."""
    generator = torch.Generator().manual_seed(seed)
    border = length // 2
    shape = (3, size, length)
    first, second, labels = torch.randint(vocabulary, shape, generator=generator)
    second[:, border:] = first[:, border:]
    labels[:, :border] = labels[:, border + _LABELS :] = IGNORE
    places = torch.arange(length)
    positions = torch.where(places < border, places, places - border).repeat(size, 1)
    where = positions if packed else None
    return MicroBatch(first, labels, where), MicroBatch(second, labels, where)


def _refusal(why: str, model: PreTrainedConfig) -> ConfigError:
    return ConfigError(
        f"data.packing documents: a model of type {model.model_type} {why}: set "
        "data.packing to plain, or train a model of another type"
    )
