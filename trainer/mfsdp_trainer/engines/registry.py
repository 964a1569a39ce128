"""From the engine in effect to its implementation."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from mfsdp_trainer.config import Engine as EngineName
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models.architecture import decoder_layers
from mfsdp_trainer.models.compiled import compile_layer
from mfsdp_trainer.models.freeze import without_masters
from mfsdp_trainer.models.head import end_in_loss
from mfsdp_trainer.models.recompute import recompute

from .base import Engine, Setup
from .ddp import DdpEngine
from .fsdp2 import Fsdp2Engine

_log = logging.getLogger(__name__)


def _megatron_fsdp(setup: Setup) -> Engine:
    # Late: megatron-core takes seconds to import, which other engines shall not pay for.
    from .megatron import MegatronFsdpEngine

    return MegatronFsdpEngine(setup)


_ENGINES: Final[Mapping[EngineName, Callable[[Setup], Engine]]] = {
    EngineName.DDP: DdpEngine,
    EngineName.TORCH_FSDP2: Fsdp2Engine,
    EngineName.MEGATRON_FSDP: _megatron_fsdp,
}


def require_engine(name: EngineName, *, gpu: bool) -> None:
    """Refuse early, before any data is read, an engine that cannot run here."""
    if name is EngineName.MEGATRON_FSDP and not gpu:
        raise ConfigError(
            "useMegatronFSDP needs GPUs: Megatron FSDP runs on CUDA only; "
            "use useTorchFSDP2 on the CPU"
        )


def _prepare_layers(setup: Setup) -> None:
    for layer in decoder_layers(setup.model):
        recompute(layer, setup.recompute)
        if setup.performance.compile:
            compile_layer(layer)


def build_engine(setup: Setup) -> Engine:
    """Shard, fill and equip the model under the engine in effect. Collective.

    Raises ConfigError for a model that the engine cannot shard.
    """
    without_masters(setup.model, setup.compute_dtype)
    setup.world.together(lambda: _prepare_layers(setup))
    if not end_in_loss(setup.model) and setup.world.is_first:
        _log.warning(
            "model type %s makes its logits in a way of its own, so all of them are held at once: "
            "microBatchSize x sequenceLength x vocabulary numbers",
            setup.model.config.model_type,
        )
    return _ENGINES[setup.sharding.engine](setup)
