"""From the engine in effect to its implementation."""

from collections.abc import Callable, Mapping
from typing import Final

from mfsdp_trainer.config import Engine as EngineName
from mfsdp_trainer.errors import ConfigError

from .base import Engine, Setup
from .ddp import DdpEngine
from .fsdp2 import Fsdp2Engine

_ENGINES: Final[Mapping[EngineName, Callable[[Setup], Engine]]] = {
    EngineName.DDP: DdpEngine,
    EngineName.TORCH_FSDP2: Fsdp2Engine,
}


def require_engine(name: EngineName) -> None:
    """Refuse early, before any data is read, what this trainer has no engine for."""
    if name not in _ENGINES:
        raise ConfigError(
            f"useMegatronFSDP: this trainer has no {name} engine yet: "
            "set useTorchFSDP2 to true instead, it takes the same strategies"
        )


def build_engine(setup: Setup) -> Engine:
    """Shard, fill and equip the model under the engine in effect.

    Collective. Raises ConfigError for an engine that this trainer does not have.
    """
    require_engine(setup.sharding.engine)
    return _ENGINES[setup.sharding.engine](setup)
