"""The `megatron_fsdp` engine: Megatron FSDP, of megatron-core, under all four strategies.

Importing this package imports megatron-core, which takes seconds: only a run that uses the engine
does (`engines/registry.py`). It needs CUDA. What Megatron FSDP 0.19 does wrong by default is
corrected once, where it arises: its configuration in `wrap.py`, the start in `start.py`, what the
optimizer and checkpoints see in `shards.py`, the order of calls in `engine.py`.
"""

from .engine import MegatronFsdpEngine

__all__ = ["MegatronFsdpEngine"]
