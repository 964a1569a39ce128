"""What a micro-batch needs beside weights and gradients, found by computing it on fake tensors.

The trainer's own model, loss and recomputation run over tensors that have shapes and lifetimes but
no memory. Nothing is guessed about an architecture, and what is added to one is counted.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from mfsdp_trainer.config.training import Recompute
from mfsdp_trainer.models.architecture import decoder_layers
from mfsdp_trainer.models.head import end_in_loss
from mfsdp_trainer.models.recompute import recompute as recomputed
from mfsdp_trainer.plan.facts import Compute, WorkFacts

from .attention import attention_of_gpus
from .storages import LiveBytes


def trace(
    model: PreTrainedModel,
    *,
    batch: int,
    length: int,
    compute: Compute,
    recompute: Recompute,
    packed: bool,
) -> WorkFacts:
    """Bytes of one micro-batch of `batch` sequences of `length` tokens.

    With `packed` they hold several documents. The model, of the meta device, is of no use for
    anything else afterwards. Raises whatever a model raises that looks at the values of its
    tensors.
    """
    # Before tensors are fake: both look at numbers of their own.
    for layer in decoder_layers(model):
        recomputed(layer, recompute)
    end_in_loss(model)
    with FakeTensorMode(), attention_of_gpus(packed=packed):
        _give_shape(model, compute)
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        live = LiveBytes([*model.parameters(), *model.buffers(), tokens])
        kept: list[tuple[int, int]] = []
        decoder = model.base_model
        decoder.register_forward_hook(lambda *_: kept.append((live.now, live.copies)))
        _leave_out_gradients(model, live)
        with live:
            _step(model, tokens, autocast=compute is Compute.AUTOCAST, packed=packed)
        activations, copies = kept[0]
        return WorkFacts(activations=activations, weight_copies=copies, peak=live.peak)


def _step(model: PreTrainedModel, tokens: Tensor, *, autocast: bool, packed: bool) -> None:
    mixed = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    with mixed:
        (loss,) = model(
            input_ids=tokens, position_ids=tokens if packed else None, labels=tokens, scale=1.0
        )
    loss.backward()


def _give_shape(model: PreTrainedModel, compute: Compute) -> None:
    """Fake tensors on the CPU in place of the meta device's, in the formats that engines hold."""
    frozen = torch.float32 if compute is Compute.FP32 else torch.bfloat16
    trained = torch.bfloat16 if compute is Compute.CAST else torch.float32
    placed: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if parameter not in placed:
                dtype = trained if parameter.requires_grad else frozen
                data = torch.empty(parameter.shape, dtype=dtype, device="cpu")
                placed[parameter] = nn.Parameter(data, requires_grad=parameter.requires_grad)
            module._parameters[name] = placed[parameter]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")


def _leave_out_gradients(model: nn.Module, live: LiveBytes) -> None:
    def drop(parameter: Tensor) -> None:
        assert parameter.grad is not None
        live.leave_out(parameter.grad)
        parameter.grad = None

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(drop)
