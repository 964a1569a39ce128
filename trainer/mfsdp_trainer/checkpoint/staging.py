"""Copies of a run's state in the host's memory, which a save can take its time to write."""

from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


class Staging:
    """Copies the state into memory that is kept from one save to the next.

    Of torch's ways to copy, only `DefaultStager` keeps which part of a whole each tensor of
    Megatron FSDP is. In this process: a helper process with shared memory would hold the copy a
    second time, and more with each save.
    """

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=cuda,
            )
        )

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as it is now: what the training does to its tensors next is not in it."""
        copied = self._stager.stage(state)
        assert isinstance(copied, dict)
        return copied
