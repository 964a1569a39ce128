"""Bytes that tensors hold while something runs: what a GPU's allocator would count.

Every operation's results are looked at; storages that FSDP empties and fills again count with what
they hold at the time. What libraries use inside one operation is not seen.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """The largest sum of live storages, and the largest single one, in bytes."""

    def __init__(self, *tensors: Tensor) -> None:
        """`tensors` were there before."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, StorageWeakRef] = {}
        for tensor in tensors:
            self._look(tensor)
        self.watch_again()

    def watch_again(self) -> None:
        """Look for the largest sum, and the largest storage, from now on."""
        self.start = self.peak = self.now()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, self._look(leaf))
        self.peak = max(self.peak, self.now())
        return made

    def _look(self, tensor: Tensor) -> int:
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        reference = StorageWeakRef(storage)
        self._seen[reference.cdata] = reference
        return storage.nbytes()

    def now(self) -> int:
        """Bytes of the storages that are alive."""
        total = 0
        for key, reference in list(self._seen.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._seen[key]
            else:
                total += storage.nbytes()
        return total
