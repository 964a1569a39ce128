"""Loading a checkpoint's tensors, once all its files were found whole."""

from typing import Any

from mfsdp_trainer.world import World

from .manifest import Manifest
from .store import Store, damage
from .transfer import read


def restore(
    state: dict[str, Any], store: Store, name: str, manifest: Manifest, world: World
) -> str | None:
    """Load a checkpoint's tensors in place, if it is whole; else what is wrong. Collective."""
    reports = world.gather(damage(store, name, manifest, part=world.rank, parts=world.size))
    harm = next((report for report in reports if report is not None), None)
    return harm or read(state, store.reader(name, manifest), world, store.place)
