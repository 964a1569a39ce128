"""The `ddp` engine: every rank holds the whole model, gradients are averaged while they come."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .base import Setup
from .common import TorchEngine


class DdpEngine(TorchEngine):
    """See `Engine`. bf16 is autocast over fp32 weights; gradients are fp32 and reduced so."""

    _frees_gradients = False
    """They are views of what is reduced: without them those of all micro-batches but the last
    would be added up in memory of their own, as much again."""

    def __init__(self, setup: Setup) -> None:
        setup.fill(setup.model)
        super().__init__(setup)
        # All ranks filled in the same numbers: no need to send rank 0's around once more.
        self._ddp = DistributedDataParallel(
            setup.model, gradient_as_bucket_view=True, init_sync=False, forward_sync_buffers=False
        )
        self._device = setup.world.device.type
        self._dtype = setup.compute_dtype

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """See `Engine.micro_batch`: gradients stay on the rank until the last one."""
        with nullcontext() if last else self._ddp.no_sync():
            yield

    def _forward(self, **inputs: Any) -> Tensor:
        mixed = self._dtype is not torch.float32
        # Without gradients the bare model: DDP would prepare a reduction that never comes.
        module = self._ddp if torch.is_grad_enabled() else self._model
        with torch.autocast(self._device, dtype=self._dtype, enabled=mixed):
            answer: Tensor = module(**inputs)[0]
        return answer

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """See `Engine.evaluation`."""
        self._model.eval()
        with torch.no_grad():
            yield
        self._model.train()
