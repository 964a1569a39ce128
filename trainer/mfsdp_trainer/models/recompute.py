"""Activations that are computed again in the backward pass, in place of being kept.

Inside each decoder layer's own forward method, so that whatever an engine hangs on the layer
(gathering and releasing its weights) stays outside and happens once a pass. Random numbers of a
layer's dropout are drawn again as they were.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from mfsdp_trainer.config.training import Recompute

_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_grouped_mm", "_scaled_mm")
_ATTENTION: Final = (
    "_efficient_attention_forward",
    "_flash_attention_forward",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
_FLASH: Final = ("_flash_attn_forward", "_flash_attn_varlen_forward")
"""Operations of the flash-attn package, which may not be there."""


@functools.cache
def _kept() -> frozenset[Any]:
    """Operations whose outputs are dear, as in torchtitan: matrix products and attention.

    And top-k: ties must not send tokens to other experts the second time.
    """
    kept = {getattr(torch.ops.aten, name).default for name in (*_PRODUCTS, *_ATTENTION, "topk")}
    # What torch.compile made of a layer is one operation.
    kept |= {torch.ops.higher_order.flex_attention, torch.ops.higher_order.inductor_compiled_code}
    flash = torch.ops.flash_attn
    return frozenset(kept | {getattr(flash, n).default for n in _FLASH if hasattr(flash, n)})


def _draws(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an attention draws random numbers itself.

    Kept, it would not draw them the second time, and what draws after it would be given those.
    """
    schema = getattr(operation, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema else ()):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else 0.0
            return bool(kwargs.get("dropout_p", given) > 0)
    return False


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if operation in _kept() and not _draws(operation, args, kwargs):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


class _Recomputed:
    """A layer's forward method, remembering less."""

    def __init__(self, forward: Callable[..., Any], *, selective: bool) -> None:
        self._forward = forward
        # No context_fn rather than one that does nothing: torch.compile takes none but known ones.
        self._choice: dict[str, Any] = {"context_fn": _selective} if selective else {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, **self._choice, **kwargs)


def recompute(layer: nn.Module, how: Recompute) -> None:
    """Make a decoder layer compute again in its backward pass what `how` does not keep."""
    if how is not Recompute.NONE:
        forward: Any = _Recomputed(layer.forward, selective=how is Recompute.SELECTIVE)
        layer.forward = forward
