"""NCCL user buffers: memory that NCCL reads and writes itself, without copies of its own.

megatron-core compiles an allocator for them with the CUDA toolkit, which images to train in do not
have, into its own directory, which a pod cannot write. torch's NCCL backend has the same one.
"""

from typing import Any

import torch
import torch.distributed as dist


def use_torchs_allocator(device: torch.device) -> None:
    """Let megatron-core allocate with torch's NCCL backend. Call it before the model is wrapped."""
    from megatron.core import nccl_allocator  # type: ignore[import-untyped]

    group: Any = dist.group.WORLD
    nccl_allocator._allocator = group._get_backend(device).mem_allocator


def register(wrapped: Any) -> None:
    """Register the buffers of a wrapped model, all at once. Collective.

    After its first step, when all of them are there; does nothing the second time, or without
    `nccl_user_buffers`.
    """
    buffers = wrapped.param_and_grad_buffer
    if wrapped.ddp_config.fsdp_manual_registration and not buffers.already_registered:
        buffers.manual_buffer_registration()
