"""Next-token cross entropy, summed: who normalises must know the tokens of the whole gang."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

IGNORE = -100
"""Label of a position that is not trained on."""
_ROWS = 4096
"""Positions whose logits are widened to fp32 at a time: at a vocabulary of 128k, 2 GiB."""


class _Context(Protocol):
    """What autograd carries from forward to backward."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _SummedCrossEntropy(torch.autograd.Function):
    """Cross entropy in fp32 over chunks of rows, never holding all logits in fp32.

    The gradient is made beside the loss, chunk by chunk, and scaled in fp32 before it takes the
    dtype of the logits: a scale of 1/tokens rounded to bf16 would be off by up to 0.4%.
    """

    @staticmethod
    def forward(ctx: _Context, logits: Tensor, labels: Tensor, scale: float) -> Tensor:
        grad = torch.empty_like(logits)
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        pieces = zip(logits.split(_ROWS), labels.split(_ROWS), grad.split(_ROWS), strict=True)
        for rows, targets, out in pieces:
            with torch.enable_grad():
                wide = rows.detach().float().requires_grad_()
                loss = scale * functional.cross_entropy(
                    wide, targets, ignore_index=IGNORE, reduction="sum"
                )
            (slope,) = torch.autograd.grad(loss, wide)
            out.copy_(slope)
            total += loss.detach()
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None


def summed_cross_entropy(logits: Tensor, labels: Tensor, scale: float = 1.0) -> Tensor:
    """`scale` x the sum of the loss in nats over positions whose label is not IGNORE, in fp32.

    `logits` [batch, positions, vocabulary] predict `labels` [batch, positions] at the same index.
    Call backward on the result itself: further factors would act in the dtype of the logits.
    """
    flat, targets = logits.flatten(0, -2), labels.flatten()
    if torch.is_grad_enabled():
        return _SummedCrossEntropy.apply(flat, targets, scale)  # type: ignore[no-any-return]
    chunks = zip(flat.split(_ROWS), targets.split(_ROWS), strict=True)
    losses = [
        functional.cross_entropy(rows.float(), wanted, ignore_index=IGNORE, reduction="sum")
        for rows, wanted in chunks
    ]
    return scale * torch.stack(losses).sum()
