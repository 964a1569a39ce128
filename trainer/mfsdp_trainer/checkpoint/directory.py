"""Checkpoints in a directory that all nodes share.

<checkpoint.path>/step-00000200/    a complete checkpoint: it got its name when it was durable
<checkpoint.path>/.saving-.../      one that is being written, or was torn
<checkpoint.path>/latest, best      names of complete ones
"""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader

from mfsdp_trainer.claim import LOCK, ClaimedError, claimed
from mfsdp_trainer.errors import CheckpointError
from mfsdp_trainer.files import publish_directory, remove, write_durably

from .files import Writer, reader
from .manifest import MANIFEST, FileSum, Manifest, Sum, attempt
from .store import BEST, LATEST, explained, name_of, newest_first

_PATIENCE: Final = 10.0
"""Seconds for an attempt that was just killed to be gone, also for a server of NFS."""
_CHUNK: Final = 1 << 24
_LEFTOVERS: Final = (".saving-*", f".{LATEST}.*", f".{BEST}.*")
"""What a killed run may leave half written."""


class Directory:
    """See `Store`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.place = str(root)
        self._claimed: tuple[int, int] | None = None
        """Device and inode of the lock that we hold."""

    def claim(self, stack: ExitStack) -> None:
        """See `Store.claim`: a lock that the kernel drops with its holder."""
        with explained(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(claimed(self._root, _PATIENCE))
            except ClaimedError as error:
                raise CheckpointError(f"checkpoint.path: {error}") from error
            self._claimed = _identity(self._root / LOCK)

    def _require_claim(self) -> None:
        """The directory must be the one that was claimed: under a volume that went away there is
        another of the same name, on the node's own disk, gone with the pod."""
        if self._claimed not in (None, _identity(self._root / LOCK)):
            raise CheckpointError(
                f"checkpoint.path: {self._root} is not the directory any more that this run began "
                "in: its volume went away, or somebody removed it"
            )

    def complete(self) -> list[str]:
        """See `Store.complete`."""
        with explained(self._root):
            if not self._root.is_dir():
                return []
            return newest_first([entry.name for entry in self._root.iterdir() if entry.is_dir()])

    def manifest(self, name: str) -> Manifest | None:
        """See `Store.manifest`."""
        try:
            text = (self._root / name / MANIFEST).read_text(encoding="utf-8")
            return Manifest.model_validate_json(text)
        except (OSError, ValueError, ValidationError):
            return None

    def begin(self, step: int) -> str:
        """See `Store.begin`."""
        scratch = f".saving-{name_of(step)}-attempt-{attempt()}"
        with explained(self._root):
            self._require_claim()
            self._root.mkdir(parents=True, exist_ok=True)
            for torn in _LEFTOVERS:
                for left in self._root.glob(torn):
                    remove(left)
            (self._root / scratch).mkdir()
        return scratch

    def writer(self, scratch: str) -> Writer:
        """See `Store.writer`."""
        return Writer(self._root / scratch, FileSystem(), sync=True)

    def publish(self, scratch: str, manifest: Manifest) -> str:
        """See `Store.publish`."""
        written = self._root / scratch
        with explained(self._root):
            self._require_claim()
            self._require_all(written, manifest)
            text = manifest.model_dump_json(by_alias=True)
            (written / MANIFEST).write_text(text, encoding="utf-8")
            name = name_of(manifest.position.step)
            publish_directory(written, self._root / name)
        return name

    def _require_all(self, written: Path, manifest: Manifest) -> None:
        for name, facts in manifest.files.items():
            file = written / name
            if not file.is_file():
                raise CheckpointError(
                    f"checkpoint.path {self._root}: {name} of another node is not here: it must be "
                    "one directory that all nodes share (a ReadWriteMany volume)"
                )
            if (size := file.stat().st_size) != facts.size:
                raise CheckpointError(
                    f"checkpoint.path {self._root}: {name} has {size} bytes where {facts.size} "
                    "were written: its volume loses data"
                )

    def point(self, pointer: str, name: str | None) -> None:
        """See `Store.point`."""
        with explained(self._root):
            if name is None:
                remove(self._root / pointer)
            else:
                write_durably(self._root / pointer, f"{name}\n")

    def remove(self, name: str) -> None:
        """See `Store.remove`."""
        with explained(self._root):
            # Under another name first: half of one must not pass for a checkpoint.
            torn = self._root / f".saving-{name}-removed"
            (self._root / name).rename(torn)
            shutil.rmtree(torn)

    def reader(self, name: str, manifest: Manifest) -> FileSystemReader:
        """See `Store.reader`."""
        return reader(self._root / name / manifest.directory, FileSystem())

    def sum(self, name: str, manifest: Manifest, file: str) -> FileSum:
        """See `Store.sum`."""
        total = Sum()
        with (self._root / name / manifest.directory / file).open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                total.add(chunk)
        return total.taken()


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode; None where there is no such file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
