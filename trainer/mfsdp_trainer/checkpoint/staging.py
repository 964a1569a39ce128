"""Copies of a run's state in the host's memory, which a save can take its time to write."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.utils._pytree import tree_leaves

from mfsdp_trainer.tensors import local


class Staging:
    """Copies the state into memory that is kept from one save to the next.

    Of torch's ways to copy, only `DefaultStager` keeps which part of a whole each tensor of
    Megatron FSDP is. In this process: a helper process with shared memory would hold the copy a
    second time, and more with each save. It also copies what a DTensor knows of itself, which takes
    as long as the numbers of small tensors: later saves fill the copies of the first again.
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

        self._cuda = cuda
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._copied: dict[str, Any] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state as it is now: what the training does to its tensors next is not in it.

        Good until the next call.
        """
        sources = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
        if self._known(sources):
            self._fill_again()
            return self._copied
        copied = self._stager.stage(state)
        assert isinstance(copied, dict)
        self._copied, self._sources = copied, sources
        self._copies = [leaf for leaf in tree_leaves(copied) if isinstance(leaf, Tensor)]
        return copied

    def _known(self, sources: list[Tensor]) -> bool:
        """Whether these are the very tensors of the last time."""
        return len(sources) == len(self._sources) and all(
            new is old for new, old in zip(sources, self._sources, strict=True)
        )

    @torch.no_grad()
    def _fill_again(self) -> None:
        for copy, source in zip(self._copies, self._sources, strict=True):
            local(copy).copy_(local(source), non_blocking=self._cuda)
        if self._cuda:
            torch.accelerator.synchronize()
