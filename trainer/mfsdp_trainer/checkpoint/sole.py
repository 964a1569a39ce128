"""The claim of one run on its checkpoints, for all ranks of a gang."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mfsdp_trainer.world import World

from .store import Store


@contextmanager
def sole_run(store: Store, world: World) -> Iterator[None]:
    """Keep other runs out of the store. Collective; rank 0 holds the claim.

    Raises CheckpointError on every rank where another run has it, or it cannot be written.
    """
    with ExitStack() as stack:
        world.from_first(lambda: store.claim(stack))
        yield
