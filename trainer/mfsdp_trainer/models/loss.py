"""Next-token cross entropy, summed: who normalises must know the tokens of the whole gang.

Logits of a large vocabulary are the largest tensor of a step. Here they exist for a chunk of
positions at a time: the loss and its gradients are made together, chunk by chunk, while the
forward pass is in the output head. torch's own `linear_cross_entropy` does the same, but gives the
sum in the dtype of its input (in bf16: three digits), and scales gradients in it.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

IGNORE = -100
"""Label of a position that is not trained on."""
CHUNK: Final = 2**26
"""Logits that exist at a time, in fp32: 256 MiB. At a vocabulary of 128k, 512 positions."""


@dataclass(frozen=True)
class Tail:
    """What a model makes of its head's output x: cap * tanh(scale * x / cap), or scale * x."""

    scale: float = 1.0
    cap: float | None = None


PLAIN: Final = Tail()


class _Context(Protocol):
    """What autograd carries from forward to backward."""

    made: tuple[Tensor | None, ...]


def _hand_over(ctx: _Context, factor: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients made in the forward pass; in place, for they may be as large as the head."""
    made, ctx.made = ctx.made, ()
    return tuple(None if grad is None else grad.mul_(factor) for grad in made)


def _chunk_loss(logits: Tensor, labels: Tensor, scale: float, tail: Tail, *, slope: bool) -> Tensor:
    """The scaled sum of a chunk's losses; `logits`, fp32 [rows, vocabulary], become the gradient.

    In place: of the largest tensor of a step there is one, or two where it is capped. Without
    `slope` they are of no use afterwards.
    """
    kept = labels != IGNORE
    at = (torch.arange(len(labels), device=labels.device), labels.where(kept, 0))
    bend = None
    if tail.cap is not None:
        logits.mul_(tail.scale / tail.cap).tanh_()
        bend = (1 - logits.square()) if slope else None
        logits.mul_(tail.cap)
    elif tail.scale != 1:
        logits.mul_(tail.scale)
    logits.sub_(logits.amax(dim=1, keepdim=True))
    wanted = logits[at]
    sums = logits.exp_().sum(dim=1)
    losses = (sums.log() - wanted).where(kept, 0) * scale
    if slope:
        factor = kept * scale
        logits.mul_((factor / sums).unsqueeze(1))
        logits[at] -= factor
        if bend is not None:
            logits.mul_(bend)
        if tail.scale != 1:
            logits.mul_(tail.scale)
    return losses.sum()


class _HeadLoss(torch.autograd.Function):
    """Head and loss in one. Gradients of the weight are added up over chunks in fp32."""

    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        scale: float,
        tail: Tail,
        wants: tuple[bool, bool, bool],
    ) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = max(1, CHUNK // len(weight))
        with torch.autocast(kind, enabled=False):
            chunks = _Chunks(hidden, weight, bias, wants, dtype)
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                total += chunks.loss(part, labels[part], scale, tail)
        ctx.made = chunks.gradients()
        return total

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*_hand_over(ctx, grads[0]), None, None, None, None)


class _Chunks:
    """A head, and the gradients of hidden states, weight and bias, as far as they are wanted."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wants: tuple[bool, bool, bool],
        dtype: torch.dtype,
    ) -> None:
        wide = torch.float32
        self._hidden, self._matrix, self._bias = hidden, weight.to(dtype), bias
        self._wanted = any(wants)
        self._dtypes = (hidden.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype)
        self._of_hidden = torch.empty_like(hidden) if wants[0] else None
        self._of_weight = torch.zeros_like(weight, dtype=wide) if wants[1] else None
        self._of_bias = (
            torch.zeros_like(bias, dtype=wide) if wants[2] and bias is not None else None
        )

    def loss(self, rows: slice, labels: Tensor, scale: float, tail: Tail) -> Tensor:
        """The scaled sum of some rows' losses, whose gradients are added up."""
        chunk = self._hidden[rows].to(self._matrix.dtype)
        loss, slope = self._scored(chunk, labels, scale, tail)
        if self._of_hidden is not None:
            self._of_hidden[rows] = slope @ self._matrix
        if self._of_weight is None:
            return loss
        if slope.dtype is self._of_weight.dtype:
            self._of_weight.addmm_(slope.T, chunk)
        else:
            self._of_weight += slope.T @ chunk
        return loss

    def _scored(
        self, chunk: Tensor, labels: Tensor, scale: float, tail: Tail
    ) -> tuple[Tensor, Tensor]:
        """The loss of hidden states [rows, width], and its slope [rows, vocabulary] by the logits.

        The slope has the dtype of the states. The logits in fp32 are gone when this returns, before
        matrices are made of it.
        """
        logits = (chunk @ self._matrix.T).float()
        if self._bias is not None:
            logits.add_(self._bias)
        loss = _chunk_loss(logits, labels, scale, tail, slope=self._wanted)
        if self._of_bias is not None:
            self._of_bias += logits.sum(dim=0)
        return loss, logits.to(chunk.dtype) if self._wanted else logits

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Each in the dtype of what it belongs to."""
        made = zip((self._of_hidden, self._of_weight, self._of_bias), self._dtypes, strict=True)
        return tuple(None if grad is None else grad.to(dtype) for grad, dtype in made)


class _LogitsLoss(torch.autograd.Function):
    """The loss of whole logits, widened to fp32 chunk by chunk."""

    @staticmethod
    def forward(
        ctx: _Context, logits: Tensor, labels: Tensor, scale: float, wanted: bool
    ) -> Tensor:
        grad = torch.empty_like(logits) if wanted else None
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        rows = max(1, CHUNK // logits.shape[1])
        for start in range(0, len(logits), rows):
            # A copy always: the chunk becomes its own gradient.
            wide = logits[start : start + rows].to(torch.float32, copy=True)
            total += _chunk_loss(wide, labels[start : start + rows], scale, PLAIN, slope=wanted)
            if grad is not None:
                grad[start : start + rows] = wide
        ctx.made = (grad,)
        return total

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*_hand_over(ctx, grads[0]), None, None, None)


def _wanted(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    scale: float = 1.0,
    tail: Tail = PLAIN,
) -> Tensor:
    """`scale` x the sum of the loss in nats over positions whose label is not IGNORE, in fp32.

    Logits are `tail` of `hidden` [batch, positions, width] through the head: `weight` [vocabulary,
    width] and `bias` [vocabulary]; they predict `labels` [batch, positions] at the same index.
    Call backward once, and on the result itself: the scale is in the gradients before they take
    the dtype of the weights, and a scale of 1/tokens rounded to bf16 would be off by up to 0.4%.
    """
    wants = (_wanted(hidden), _wanted(weight), _wanted(bias))
    loss: Tensor = _HeadLoss.apply(
        hidden.flatten(0, -2), weight, bias, labels.flatten(), scale, tail, wants
    )
    return loss


def logits_loss(logits: Tensor, labels: Tensor, scale: float = 1.0) -> Tensor:
    """The same from logits [batch, positions, vocabulary], which hold all of them at once."""
    loss: Tensor = _LogitsLoss.apply(
        logits.flatten(0, -2), labels.flatten(), scale, _wanted(logits)
    )
    return loss
