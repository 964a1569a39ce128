"""What a checkpoint says of itself: where the run stood, what it goes with, and its files' sums."""

import os
import zlib
from typing import Any, Final, Literal

from pydantic import Field

from mfsdp_trainer.config.base import ConfigModel
from mfsdp_trainer.contract import Env

MANIFEST: Final = "checkpoint.json"


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
    optimizer: str = "adamw"
    """Whose state is beside the weights; older checkpoints know one optimizer only."""
    frozen: str = ""
    """Digest of the names of parameters that are not trained; empty if all are."""
    base: str = ""
    """Digest of the weights that the checkpoint leaves out; empty if it holds all."""


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
    eval_loss: float | None = None
    """Loss on held-out text at this step, if it was measured."""
    directory: str = ""
    """Where below the checkpoint its files are; empty: beside this one."""
    files: dict[str, FileSum]
    """Every other file of the checkpoint."""


class Sum:
    """A checksum in the making."""

    def __init__(self) -> None:
        self._size = 0
        self._crc32 = 0

    def add(self, data: Any) -> None:
        """Take in the next bytes, of any object with a buffer."""
        self._size += memoryview(data).nbytes
        self._crc32 = zlib.crc32(data, self._crc32)

    def taken(self) -> FileSum:
        """Of all bytes so far."""
        return FileSum(size=self._size, crc32=self._crc32)


def attempt() -> str:
    """The attempt of the job that this process belongs to."""
    return os.environ.get(Env.ATTEMPT) or "0"


def job() -> str:
    """The job that this process belongs to; empty for a run by hand."""
    return os.environ.get(Env.JOB_UID) or ""
