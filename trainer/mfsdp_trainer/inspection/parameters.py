"""The tensors of a meta model by the units that engines shard it by."""

from collections import Counter
from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from mfsdp_trainer.models.architecture import decoder_layers, is_tied
from mfsdp_trainer.plan.facts import TensorFacts, UnitFacts, UnitKind


def units(model: PreTrainedModel) -> tuple[UnitFacts, ...]:
    """Units in the order in which they compute; neighbours of the same shapes are one entry."""
    seen: set[nn.Parameter] = set()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = not is_tied(model)
    modules: list[tuple[UnitKind, nn.Module | None]] = [
        (UnitKind.END, embedding if ends else None),
        *((UnitKind.LAYER, layer) for layer in decoder_layers(model)),
        (UnitKind.END, head if ends else None),
        (UnitKind.ROOT, model),
    ]
    found = [_unit(kind, module, seen) for kind, module in modules if module is not None]
    return tuple(_merged(unit for unit in found if unit.tensors))


def _unit(kind: UnitKind, module: nn.Module, seen: set[nn.Parameter]) -> UnitFacts:
    """What of a module no unit before it has."""
    shapes: Counter[tuple[int, int, bool]] = Counter()
    for parameter in module.parameters():
        if parameter in seen:
            continue
        seen.add(parameter)
        rows = parameter.shape[0] if parameter.dim() else 1
        shapes[rows, parameter.numel() // max(rows, 1), parameter.requires_grad] += 1
    tensors = (
        TensorFacts(rows=rows, row=row, count=count, trained=trained)
        for (rows, row, trained), count in shapes.items()
    )
    return UnitFacts(kind=kind, count=1, tensors=tuple(tensors))


def _merged(found: Iterator[UnitFacts]) -> Iterator[UnitFacts]:
    last: UnitFacts | None = None
    for unit in found:
        if last is not None and (last.kind, last.tensors) == (unit.kind, unit.tensors):
            last = last.model_copy(update={"count": last.count + 1})
            continue
        if last is not None:
            yield last
        last = unit
    if last is not None:
        yield last
