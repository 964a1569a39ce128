"""What makes two runs on as many GPUs equal to the bit. CPUs and gloo are so by themselves.

The order of the data, the initial weights and the random numbers of each step follow from the
seed in any case; here the order in which GPUs add up is fixed too.
"""

import os
from collections.abc import Mapping
from typing import Final

import torch

_ENVIRONMENT: Final[Mapping[str, str]] = {
    # cuBLAS promises equal sums for a workspace of fixed size only.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # NVLink's switches add up in the order of arrival; as Megatron-LM's --deterministic-mode asks.
    "NCCL_ALGO": "^NVLS",
    # Read by transformers: the backward of FlashAttention without atomic additions.
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}


def require_determinism() -> None:
    """Call before CUDA and NCCL start, which read the environment once. What the pod sets wins."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
