"""Between the tensors of a run and the files of a checkpoint, with torch.distributed.checkpoint."""

from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from mfsdp_trainer.errors import CheckpointError
from mfsdp_trainer.world import World

from .files import Writer
from .manifest import FileSum
from .store import first_line, why


def write(state: dict[str, Any], writer: Writer, world: World, place: str) -> dict[str, FileSum]:
    """Write all ranks' parts; the sums of all files, on every rank. Collective.

    Raises CheckpointError on every rank where any of them cannot write.
    """
    try:
        save(state, storage_writer=writer, process_group=world.storage)
    except CheckpointException as error:
        raise CheckpointError(_cause(place, error)) from error
    return {name: file for part in world.gather(writer.sums) for name, file in part.items()}


def read(state: dict[str, Any], reader: FileSystemReader, world: World, place: str) -> str | None:
    """Load into the state in place; what went wrong, the same on every rank, or None."""
    try:
        load(state, storage_reader=reader, process_group=world.storage)
    except CheckpointException as error:
        return _cause(place, error)
    return None


def _cause(place: str, error: CheckpointException) -> str:
    """The first failure, of the lowest rank that had one."""
    rank, (cause, _) = min(error.failures.items())
    if isinstance(cause, OSError):
        return why(place, cause)
    return f"checkpoint.path {place}: rank {rank}: {first_line(cause)}"
