"""Megatron FSDP on the CPU, for tests: what it asks of torch.cuda, answered without a GPU.

Only tests use it, around what they run in a gang's processes; nothing in the product can. With a
GPU it refuses: there the real thing is to be tested. Streams and events order work on a GPU; on
the CPU all work is done when its call returns, gloo's by `wait()`, so theirs do nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor


class _Stream:
    def wait_stream(self, stream: "_Stream") -> None: ...

    def record_event(self, event: "_Event | None" = None) -> "_Event":
        return event or _Event()


class _Event:
    def wait(self, stream: _Stream | None = None) -> None: ...


def _stream(stream: _Stream | None) -> AbstractContextManager[None]:
    return nullcontext()


def _stays(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return tensor


def _kept_buffer(own: Any) -> Any:
    """The package makes the buffers that it keeps where torch.cuda computes."""

    def get_tensor(*args: Any, **kwargs: Any) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
            tensor: Tensor = own(*args, **kwargs)
            return tensor

    return get_tensor


@contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Patch torch.cuda in this process for a while. Raises RuntimeError where there is a GPU."""
    if torch.cuda.is_available():
        raise RuntimeError("the CPU shim is for machines without a GPU: test on the GPU instead")
    from megatron.core.distributed.fsdp.src.megatron_fsdp.utils import GlobalMemoryBuffer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "current_stream", _Stream)
        patch.setattr(torch.cuda, "stream", _stream)
        patch.setattr(Tensor, "cuda", _stays)
        patch.setattr(GlobalMemoryBuffer, "get_tensor", _kept_buffer(GlobalMemoryBuffer.get_tensor))
        yield
