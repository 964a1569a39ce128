"""The corpus of a run on every node that must have one of its own."""

import os

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.world import World

from .corpus import Corpus, prepare
from .place import is_of_each_node


def prepared(config: TrainerConfig, world: World) -> Corpus:
    """Find or make tokenizer and tokens: once for all nodes, or on each of them. Collective.

    Raises DataError, ConfigError and CheckpointError as `prepare` does, on every rank; DataError
    where nodes read different text.
    """
    if not is_of_each_node(config):
        return world.from_first(lambda: prepare(config))
    local = int(os.environ.get("LOCAL_RANK") or world.rank)
    made = world.together(lambda: prepare(config) if local == 0 else None)
    corpora = world.gather(made)
    corpus, first = corpora[world.rank - local], corpora[0]
    assert corpus is not None
    assert first is not None
    if any(one is not None and not one.is_same(first) for one in corpora):
        raise DataError(
            "data.sources: nodes read different text, and with checkpoint.path in an object store "
            "each node tokenises for itself: mount the same data on every node"
        )
    return corpus
