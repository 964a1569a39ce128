"""A model whose forward pass ends in its loss, so that its logits never exist all at once.

The head must be called as a module, and once: that is when sharding engines gather its weight. So
the head's own forward pass takes labels, and the model's goes from the body to it. That leaves out
whatever else a model does between its body and its logits (Gemma 2 caps them, Granite and Cohere
scale them). It is found out from the model's own code, with numbers: the body is replaced for a
moment by one that answers with known values. What is not understood is not guessed: such a model
makes its logits as it always does, and the loss is made of them.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from .loss import PLAIN, Tail, head_loss, logits_loss

_SMALL: Final = 2.0**-10
"""So near to zero that a cap is not felt."""
_HUGE: Final = 2.0**100
"""So far from it that nothing but the cap is left."""


@dataclass(frozen=True)
class Way:
    """How a model goes from tokens to logits: its body, its head, and the tail."""

    body: nn.Module
    tail: Tail


class _Answer:
    """What any body answers: hidden states first, and nothing of all else that there may be."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: Any) -> Any:
        return (self.last_hidden_state,)[place]


class _Body(nn.Module):
    """Answers with given hidden states, and remembers what it was asked."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden
        self.asked: dict[int | str, Any] = {}

    def forward(self, *args: Any, **asked: Any) -> _Answer:
        self.asked.update(enumerate(args))
        self.asked.update(asked.items())
        return _Answer(self.hidden)


def _head_forward(
    self: nn.Linear,
    hidden: Tensor,
    labels: Tensor | None = None,
    scale: float = 1.0,
    tail: Tail = PLAIN,
) -> Tensor:
    """Logits without labels, the loss with them."""
    if labels is None:
        return functional.linear(hidden, self.weight, self.bias)
    return head_loss(hidden, self.weight, self.bias, labels, scale, tail)


def model_inputs(inputs: Tensor, positions: Tensor | None) -> dict[str, Any]:
    """What a transformers model is called with, for packed documents: the one place to say so.

    transformers keeps attention inside documents if `position_ids` say where each begins, and no
    `attention_mask` (not even one of all ones) and no cache (`use_cache`, the default) is given:
    with either it takes the row for one document, in silence. It goes by differences other than 1,
    so positions that restart at 0 are told from the token before whatever that token's is.
    """
    packed = {} if positions is None else {"position_ids": positions}
    return {"input_ids": inputs, "use_cache": False, **packed}


class _Forward:
    """Stands for a model's forward method: `(loss,)` with labels, `(logits,)` without."""

    def __init__(self, model: PreTrainedModel, way: Way | None) -> None:
        self._model = model
        self._own = model.forward
        self._way = way

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float = 1.0,
    ) -> tuple[Tensor]:
        inputs = model_inputs(input_ids, position_ids)
        # A tuple: in a ModelOutput Megatron FSDP finds no tensors to hang the end of the backward
        # pass on.
        if labels is None:
            return (self._own(**inputs, return_dict=False)[0],)
        if self._way is None:
            logits = self._own(**inputs, return_dict=False)[0]
            return (logits_loss(logits, labels, scale),)
        hidden = self._way.body(**inputs)[0]
        head: Any = self._model.get_output_embeddings()
        return (head(hidden, labels=labels, scale=scale, tail=self._way.tail),)


def end_in_loss(model: PreTrainedModel) -> bool:
    """Make the model's forward pass take labels and a scale, and answer with `(loss,)`.

    Before the model is sharded; parameters and their names stay. See `head_loss` for the loss.
    False where its logits have to be held whole.
    """
    way = way_of(model)
    if way is not None:
        head = model.get_output_embeddings()
        head.forward = MethodType(_head_forward, head)
    forward: Any = _Forward(model, way)
    model.forward = forward
    return way is not None


def way_of(model: PreTrainedModel) -> Way | None:
    """The way from tokens to logits, if a body, a plain head and a tail are all there is to it.

    The model may be on the meta device.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return None
    bodies: tuple[nn.Module, ...] = (model.base_model, model.get_decoder())
    for body in bodies:
        if body is model or not _takes_positions(body):
            continue
        if tail := _tail(model, body, head):
            return Way(body, tail)
    return None


def _takes_positions(body: nn.Module) -> bool:
    """Whether a body can be called with `position_ids`; the whole model may just drop them."""
    parameters = inspect.signature(body.forward).parameters.values()
    return any(p.name == "position_ids" or p.kind is p.VAR_KEYWORD for p in parameters)


def _tail(model: PreTrainedModel, own: nn.Module, head: nn.Linear) -> Tail | None:
    """What the model makes of its head's output, if that follows from `own` alone."""
    # In between, densely enough to tell a cap that bends from one that cuts.
    points = torch.tensor([_SMALL, _HUGE, *(1.5 * 2.0**power for power in range(-8, 11))])
    values = torch.cat([points, -points])
    body = _Body(values.view(1, -1, 1))
    try:
        with _replaced(model, own, body):
            found = _answer(model, body.hidden, head)
    except Exception:  # noqa: BLE001 - any model's own code; what it cannot do here is not known
        return None
    if found.shape != (1, len(values), head.out_features) or not _plainly_asked(body.asked):
        return None
    one = found[0, :, 0]
    if not torch.equal(found[0], one.unsqueeze(1).expand_as(found[0])):
        # Not every token of the vocabulary is treated alike.
        return None
    return _fit(values, one.float(), plain_only=head.bias is not None)


@torch.no_grad()
def _answer(model: PreTrainedModel, hidden: Tensor, head: nn.Linear) -> Tensor:
    """The model's logits where its head repeats each number for the whole vocabulary."""
    repeat = nn.Linear(1, head.out_features, bias=False, device="cpu", dtype=torch.float32)
    nn.init.ones_(repeat.weight)
    tokens = torch.zeros(hidden.shape[:2], dtype=torch.long)
    with _replaced(model, head, repeat):
        logits: Tensor = model(input_ids=tokens, use_cache=False, return_dict=False)[0]
    return logits


@contextmanager
def _replaced(model: nn.Module, module: nn.Module, other: nn.Module) -> Iterator[None]:
    """Another module in the place of one, for a while."""
    ((owner, name),) = (
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if child is module
    )
    owner._modules[name] = other
    try:
        yield
    finally:
        owner._modules[name] = module


def _plainly_asked(asked: dict[int | str, Any]) -> bool:
    """Whether the body is given the tokens alone, as `_Forward` does."""
    others = {name: value for name, value in asked.items() if name not in ("input_ids", 0)}
    return all(
        value is None or value is False or name == "return_dict" for name, value in others.items()
    )


def _fit(values: Tensor, found: Tensor, *, plain_only: bool) -> Tail | None:
    """The tail that makes `found` of `values`, to the accuracy of fp32.

    With a bias only the plain one: a factor before the head and one after it would differ.
    """
    scale = float(found[0] / values[0])
    if torch.allclose(found, scale * values, rtol=1e-6, atol=0):
        tail = Tail(scale)
    else:
        cap = float(found[1])
        tail = Tail(scale, cap)
        made = cap * torch.tanh(scale * values / cap)
        if not cap > 0 or not torch.allclose(found, made, rtol=1e-5, atol=0):
            return None
    return tail if not plain_only or tail == PLAIN else None
