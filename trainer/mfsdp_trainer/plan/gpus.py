"""Memory of GPUs by name, and what of it a run can count on."""

import re
from typing import Final

from pydantic import computed_field

from mfsdp_trainer.config import ConfigModel

_MIB: Final = 1 << 20
_CONTEXT: Final = 2 << 30
"""CUDA's context, NCCL's channels and cuBLAS's workspace."""
_FRAGMENTED: Final = 0.05
"""Of the rest, what the allocator holds in pieces that fit nothing."""

_REPORTED: Final = {
    "a10-24gb": 23_028,
    "a100-40gb": 40_960,
    "a100-80gb": 81_920,
    "b200-180gb": 183_359,
    "h100-80gb": 81_559,
    "h100-94gb": 95_830,
    "h200-141gb": 143_771,
    "l4-24gb": 23_034,
    "l40s-48gb": 46_068,
    "rtx4090-24gb": 24_564,
}
"""MiB as nvidia-smi reports them."""
_UNITS: Final = {
    **{"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40},
    **{"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
}
NAMES: Final = tuple(_REPORTED)
DEFAULT: Final = "h100-80gb"


class Gpu(ConfigModel):
    """A kind of GPU."""

    name: str
    memory: int
    """Bytes in all."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usable(self) -> int:
        """Bytes that tensors can have."""
        return max(0, round((self.memory - _CONTEXT) * (1 - _FRAGMENTED)))


def named(name: str) -> Gpu:
    """A GPU of the table. Raises ValueError that lists it."""
    if name.lower() not in _REPORTED:
        raise ValueError(f"{name!r} is none of {', '.join(NAMES)}: give its size with --memory")
    return Gpu(name=name.lower(), memory=_REPORTED[name.lower()] * _MIB)


def of_memory(quantity: str) -> Gpu:
    """A GPU of so much memory, written as Kubernetes writes it: 80Gi. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)", quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no quantity of memory such as 80Gi or 80000M")
    number, unit = match.groups()
    size = round(float(number) * _UNITS[unit])
    if size < _CONTEXT:
        raise ValueError(f"{quantity!r} is less than any GPU has: give its unit too, such as 80Gi")
    return Gpu(name=f"a GPU of {quantity}", memory=size)
