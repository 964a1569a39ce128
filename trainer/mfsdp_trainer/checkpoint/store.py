"""Where the checkpoints of a run are kept: what a directory and an object store have in common.

Names are `step-00000200`. Nothing here is collective: rank 0 names, publishes and removes, every
rank writes and reads files through torch's writers and readers.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol

from torch.distributed.checkpoint.filesystem import FileSystemReader

from mfsdp_trainer.errors import CheckpointError

from .files import Writer
from .manifest import FileSum, Manifest

LATEST: Final = "latest"
"""Names the newest complete checkpoint, for people and scripts."""
BEST: Final = "best"
"""Names the one with the lowest loss on held-out text."""
_NAME: Final = re.compile(r"step-(\d{8,})")


class Store(Protocol):
    """All methods raise CheckpointError with one line for a person, unless they say otherwise."""

    place: str
    """The directory or URL, for messages."""

    def claim(self, stack: ExitStack) -> None:
        """Keep other runs out until the stack is closed."""

    def complete(self) -> list[str]:
        """Names of the complete checkpoints, newest first."""

    def manifest(self, name: str) -> Manifest | None:
        """What a checkpoint says of itself; None if that cannot be read."""

    def begin(self, step: int) -> str:
        """A new place to write the checkpoint of a step; what torn saves left is removed."""

    def writer(self, scratch: str) -> Writer:
        """Writes this rank's files into such a place."""

    def publish(self, scratch: str, manifest: Manifest) -> str:
        """Make what was written a complete checkpoint, all at once; returns its name."""

    def point(self, pointer: str, name: str | None) -> None:
        """Have `latest` or `best` name a checkpoint, or none."""

    def remove(self, name: str) -> None:
        """Delete a checkpoint; killed in between, it is not complete any more."""

    def reader(self, name: str, manifest: Manifest) -> FileSystemReader:
        """Reads a checkpoint's files."""

    def sum(self, name: str, manifest: Manifest, file: str) -> FileSum:
        """Read one file of a checkpoint through. Raises OSError."""


def name_of(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """The step that a checkpoint's name tells."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match.group(1))


def newest_first(names: list[str]) -> list[str]:
    """The names of checkpoints among others, newest first."""
    return sorted(filter(_NAME.fullmatch, names), key=step_of, reverse=True)


def damage(store: Store, name: str, manifest: Manifest, *, part: int, parts: int) -> str | None:
    """What is wrong with the files of a checkpoint, or None.

    Reads every `parts`-th file from `part` on, so that ranks share the reading.
    """
    for file in sorted(manifest.files)[part::parts]:
        try:
            found = store.sum(name, manifest, file)
        except OSError as error:
            return f"{file}: {error.strerror}"
        if found != manifest.files[file]:
            return f"{file}: its contents changed since it was written"
    return None


@contextmanager
def explained(place: object) -> Iterator[None]:
    """Turn errors of the file system or object store into one line for a person."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(why(place, error)) from error


def why(place: object, error: OSError) -> str:
    """What a person has to know of an error while a checkpoint was written."""
    where = str(error.filename or place)
    if "://" in where:
        return (
            f"checkpoint.path: {where}: {error.strerror or error}: check the bucket, the "
            "credentials and endpoint in the pod's environment, and the network"
        )
    return (
        f"checkpoint.path: cannot write {where}: {error.strerror or error}: give it a volume with "
        "room that the trainer's user may write"
    )


def first_line(error: BaseException | Any) -> str:
    """What an exception says, without what follows the first line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
