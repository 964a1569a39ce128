"""The data of a run on every node that must have its own."""

import os

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.world import World

from .place import is_of_each_node
from .prepare import Prepared, prepare


def prepared(config: TrainerConfig, world: World) -> Prepared:
    """Find or make tokenizer and tokens: once for all nodes, or on each of them. Collective.

    Raises DataError, ConfigError and CheckpointError as `prepare` does, on every rank; DataError
    where nodes read different text.
    """
    if not is_of_each_node(config):
        return world.from_first(lambda: prepare(config))
    local = int(os.environ.get("LOCAL_RANK") or world.rank)
    made = world.together(lambda: prepare(config) if local == 0 else None)
    every = world.gather(made)
    mine, first = every[world.rank - local], every[0]
    assert mine is not None
    assert first is not None
    if any(one is not None and not one.is_same(first) for one in every):
        raise DataError(
            "data.sources: nodes read different text, and with checkpoint.path in an object store "
            "each node tokenises for itself: mount the same data on every node"
        )
    return mine
