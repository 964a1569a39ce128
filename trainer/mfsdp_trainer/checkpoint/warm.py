"""A start with the weights of another run, without its optimizer, step and place in the data."""

import logging

from mfsdp_trainer.engines import Engine
from mfsdp_trainer.errors import CheckpointError, ConfigError
from mfsdp_trainer.world import World

from .identity import require_same
from .manifest import Identity
from .opened import open_store
from .reading import restore
from .store import Store, newest_first

_FIELD = "checkpoint.warmStart"

_log = logging.getLogger(__name__)


def warm_start(path: str, engine: Engine, identity: Identity, world: World) -> str:
    """Load weights in place; returns which checkpoint they are of. Collective.

    Raises ConfigError where there is none, or one of another model or tokenizer; CheckpointError
    where none can be read.
    """
    store, names = world.together(lambda: _found(path))
    for name in world.from_first(lambda: names):
        where = f"{store.place}/{name}"
        manifest = world.from_first(lambda name=name: store.manifest(name))  # type: ignore[misc]
        harm: str | None = "checkpoint.json is missing, unreadable or of another version"
        if manifest is not None:
            require_same(manifest.identity, identity, where, _FIELD)
            weights = {"model": engine.state()["model"]}
            harm = restore(weights, store, name, manifest, world)
        if harm is None:
            engine.restored()
            return where
        if world.is_first:
            _log.warning("checkpoint %s is damaged and skipped: %s", where, harm)
    raise CheckpointError(
        f"{_FIELD} {path}: none of its checkpoints can be read: choose another, or leave it out"
    )


def _found(path: str) -> tuple[Store, list[str]]:
    """The checkpoint that a path names, or all those below it."""
    parent, _, last = path.rstrip("/").rpartition("/")
    if newest_first([last]):
        store = open_store(parent or "/")
        names = [name for name in store.complete() if name == last]
    else:
        store = open_store(path)
        names = store.complete()
    if not names:
        raise ConfigError(
            f"{_FIELD}: {path} holds no checkpoint: name a directory step-..., or one that has such"
        )
    return store, names
