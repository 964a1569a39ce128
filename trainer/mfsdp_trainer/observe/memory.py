"""The memory that one rank holds: of its GPU, or of the process where there is none."""

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

import torch

_STATM: Final = Path("/proc/self/statm")
_RESIDENT: Final = 1


class Memory(NamedTuple):
    """Bytes held now, and the most so far."""

    now: int
    peak: int


def memory_in_use() -> Memory:
    """This rank's memory; on a GPU what torch has reserved, which is what others cannot have."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return Memory(torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved())
    pages = int(_STATM.read_text(encoding="ascii").split()[_RESIDENT])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    now = pages * os.sysconf("SC_PAGE_SIZE")
    return Memory(now, max(now, peak))
