"""PID 1's side of the run directory: reads what the workers' `Reporter` writes. Never waits."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from mfsdp_trainer.contract import PROGRESS_MAX_BYTES, Progress
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.reporting import (
    PROGRESS_FILE,
    Heartbeat,
    WorkerOutcome,
    heartbeat_file,
    outcome_file,
    stacks_file,
)

_ROOM: Final = 1 << 18
"""Bytes that must be free: several times what heartbeats, outcomes and stacks take."""


def _text(path: Path, limit: int = PROGRESS_MAX_BYTES) -> str:
    """The file's first bytes; empty while it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


class RunDir:
    """The files of one run on this node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beats: dict[int, Heartbeat] = {}

    @classmethod
    def create(cls) -> "RunDir":
        """A new one under the system's directory for temporary files.

        Raises ConfigError where none can be written, or it has no room for what a run leaves there.
        """
        made: Path | None = None
        try:
            made = Path(tempfile.mkdtemp(prefix="mfsdp-"))
            room = made / "room"
            room.write_bytes(bytes(_ROOM))
            room.unlink()
        except OSError as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            raise ConfigError(
                f"TMPDIR: a run needs a directory for small temporary files, and none has room or "
                f"may be written ({error.strerror or error}): set TMPDIR to another, or mount an "
                "emptyDir at /tmp"
            ) from None
        return cls(made)

    def remove(self) -> None:
        """Delete it and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def heartbeats(self, ranks: Iterable[int]) -> dict[int, Heartbeat]:
        """The newest heartbeat of each rank that gave one; of a torn record, the one before."""
        for rank in ranks:
            if text := _text(heartbeat_file(self.path, rank)):
                try:
                    self._beats[rank] = Heartbeat.model_validate_json(text)
                except ValidationError:
                    continue
        return {rank: self._beats[rank] for rank in ranks if rank in self._beats}

    def outcomes(self, ranks: Iterable[int]) -> list[WorkerOutcome]:
        """How the ranks that said so ended, the first of them first."""
        texts = (_text(outcome_file(self.path, rank)) for rank in ranks)
        found = [WorkerOutcome.model_validate_json(text) for text in texts if text]
        return sorted(found, key=lambda record: record.at)

    def progress(self) -> Progress | None:
        """What rank 0 published last, on the node that has it."""
        text = _text(self.path / PROGRESS_FILE)
        return Progress.model_validate_json(text) if text else None

    def stacks(self, rank: int) -> str:
        """What faulthandler wrote of a rank."""
        return _text(stacks_file(self.path, rank))
