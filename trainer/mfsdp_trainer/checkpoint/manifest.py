"""What a checkpoint says of itself: where the run stood, what it goes with, and its files' sums."""

import zlib
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from mfsdp_trainer.config.base import ConfigModel

MANIFEST: Final = "checkpoint.json"
_CHUNK: Final = 1 << 24


class Position(ConfigModel):
    """Where a run stands between two steps."""

    step: int = Field(ge=0)
    """Finished optimizer steps."""
    consumed: int = Field(ge=0)
    """Training sequences consumed over all ranks: the place in the data's order."""


class Identity(ConfigModel):
    """What a checkpoint goes with."""

    parameters: str
    """Digest of the parameters' names and shapes."""
    architecture: str = ""
    """Digest of what else decides what the parameters compute; empty in older checkpoints."""
    tokenizer: str
    """Digest of the tokenizer."""
    order: str
    """Digest of what the order of the data depends on: tokens, sequence length, seed."""


class FileSum(ConfigModel):
    """Length and checksum of one file."""

    size: int
    crc32: int


class Manifest(ConfigModel):
    """The file checkpoint.json, written last."""

    format: Literal[1] = 1
    position: Position
    identity: Identity
    world_size: int
    """Processes that wrote it; any number may read it."""
    attempt: str
    """Which attempt of the job wrote it."""
    job: str = ""
    """Which job; empty for a run by hand."""
    files: dict[str, FileSum]
    """Every other file of the directory."""


def sum_file(path: Path) -> FileSum:
    """Read a file through once."""
    size, crc = 0, 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return FileSum(size=size, crc32=crc)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a checkpoint, or None if it has none that can be read."""
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8")
        return Manifest.model_validate_json(text)
    except (OSError, ValueError, ValidationError):
        return None


def damage(directory: Path, manifest: Manifest, *, part: int, parts: int) -> str | None:
    """What is wrong with the files of a checkpoint, or None.

    Reads every `parts`-th file from `part` on, so that ranks share the reading.
    """
    for name in sorted(manifest.files)[part::parts]:
        try:
            found = sum_file(directory / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != manifest.files[name]:
            return f"{name}: its contents changed since it was written"
    return None
