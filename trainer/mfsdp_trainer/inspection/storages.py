"""Counts the bytes of tensors that are alive, while operations make them and let go of them.

Works on fake tensors too, which have sizes and lifetimes but no memory: so the peak of a step is
found in seconds for a model that no machine at hand could hold.
"""

import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operations made inside the `with`, and are still held."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """`known` are tensors that are not counted: weights and inputs."""
        super().__init__()  # type: ignore[no-untyped-call]
        # A storage is known by its address, which another may have once it is gone: hence serials.
        self._serials: dict[int, int] = {}
        self._references: dict[int, weakref.ref[UntypedStorage]] = {}
        self._sizes: list[int] = []
        self._events: list[tuple[int, int]] = []
        self._left_out: set[int] = set()
        self._copies: set[int] = set()
        self._known = [tensor.untyped_storage() for tensor in known]
        self._known_keys = {storage._cdata for storage in self._known}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf.untyped_storage(), func, args)
        return result

    def leave_out(self, tensor: Tensor) -> None:
        """Do not count this tensor, nor have counted it: it is the gradient of a weight."""
        serial = self._serials.get(tensor.untyped_storage()._cdata)
        if serial is not None:
            self._left_out.add(serial)

    @property
    def peak(self) -> int:
        """The most that was alive at any time, without copies of weights."""
        ignored = self._left_out | self._copies
        changes = (sign * self._sizes[s] for s, sign in self._events if s not in ignored)
        return max(accumulate(changes), default=0)

    @property
    def now(self) -> int:
        """What is alive, without copies of weights."""
        ignored = self._left_out | self._copies
        return sum(sign * self._sizes[s] for s, sign in self._events if s not in ignored)

    @property
    def copies(self) -> int:
        """Of what is alive, the weights in another number format."""
        return sum(sign * self._sizes[s] for s, sign in self._events if s in self._copies)

    def _note(self, storage: UntypedStorage, func: OpOverload, args: tuple[Any, ...]) -> None:
        key = storage._cdata
        if key in self._serials or key in self._known_keys:
            return
        serial = len(self._sizes)
        self._serials[key] = serial
        self._sizes.append(storage.nbytes())
        self._events.append((serial, 1))
        if func.overloadpacket.__name__ == "_to_copy" and self._is_known(args[0]):
            self._copies.add(serial)

        def gone(_: object) -> None:
            del self._serials[key], self._references[serial]
            self._events.append((serial, -1))

        self._references[serial] = weakref.ref(storage, gone)

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._known_keys
