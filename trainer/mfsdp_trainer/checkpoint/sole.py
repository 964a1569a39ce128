"""The claim of one run on its checkpoint directory, for all ranks of a gang."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from mfsdp_trainer.claim import ClaimedError, claimed
from mfsdp_trainer.errors import CheckpointError
from mfsdp_trainer.world import World

from .directory import explained

_PATIENCE: Final = 10.0
"""Seconds for an attempt that was just killed to be gone, also for a server of NFS."""


@contextmanager
def sole_run(root: Path, world: World) -> Iterator[None]:
    """Keep other runs out of `root`, which is made if needed. Collective; rank 0 holds the claim.

    Raises CheckpointError on every rank where another run has it, or it cannot be written.
    """
    with ExitStack() as stack:
        world.from_first(lambda: _claim(root, stack))
        yield


def _claim(root: Path, stack: ExitStack) -> None:
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(claimed(root, _PATIENCE))
        except ClaimedError as error:
            raise CheckpointError(f"checkpoint.path: {error}") from error
