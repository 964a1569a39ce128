"""torch's attention as a GPU does it, for fake tensors of any device.

On the CPU torch would take other kernels, which keep other tensors for the backward pass. Here the
operations of the GPU's are called by name: fake tensors run none of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import masking_utils


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """FlashAttention, or with a mask, which that cannot take, the memory-efficient kernel.

    Dropout is left out: the kernels draw it anew in the backward pass.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attn_mask is None:
        flash: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
        return flash
    groups = query.shape[1] // key.shape[1]
    bias = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    masked: Tensor = efficient(query, key, value, bias, True)[0]
    return masked


def _not_packed(position_ids: Tensor) -> Tensor | None:
    """transformers looks for packed documents in the values of positions, which there are none of.

    Told that there are none, it makes no mask where causality is all that there is to it.
    """
    return None


@contextmanager
def attention_of_gpus(*, packed: bool) -> Iterator[None]:
    """For a while torch's attention function is that of a GPU.

    With `packed`, sequences hold several documents, which a mask keeps apart.
    """
    kept = functional.scaled_dot_product_attention, masking_utils.find_packed_sequence_indices
    functional.scaled_dot_product_attention = _attention
    if not packed:
        masking_utils.find_packed_sequence_indices = _not_packed
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, masking_utils.find_packed_sequence_indices = kept
