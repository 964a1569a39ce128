"""Where an exported model goes: files are written to a local directory and appear all at once."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from mfsdp_trainer.files import publish_directory, scratch_directory

_LAST: Final = "config.json"
"""What from_pretrained looks for first: without it there is no model."""


class ExportPlace(Protocol):
    """For rank 0 alone. Methods raise OSError."""

    directory: Path
    """Empty at first: write here."""

    def finished(self, file: Path) -> None:
        """A file of the directory is complete, and not needed any more by who wrote it."""

    def publish(self) -> None:
        """All files are finished: show them as the target, in place of an older export."""


class _Beside:
    """Beside the target in the same directory, which is renamed at the end."""

    def __init__(self, scratch: Path, target: Path) -> None:
        self.directory = scratch
        self._target = target

    def finished(self, file: Path) -> None:
        # safetensors lets the owner alone read: not what a model on a shared volume is for.
        file.chmod(0o644)

    def publish(self) -> None:
        publish_directory(self.directory, self._target)


class _Uploaded:
    """Uploaded file by file, so that the node holds one at a time; config.json last of all."""

    def __init__(self, scratch: Path, target: str) -> None:
        from obstore.store import from_url

        from mfsdp_trainer.checkpoint.objects import Objects, os_errors

        self.directory = scratch
        with os_errors(target):
            self._files = Objects(from_url(target), target)
        self._new = {_LAST}
        if self._files.exists(_LAST):
            self._files.rm_file(_LAST)

    def finished(self, file: Path) -> None:
        key = str(file.relative_to(self.directory))
        if key != _LAST:
            self._files.upload(file, key)
            self._new.add(key)
            file.unlink()

    def publish(self) -> None:
        for old in self._files.sizes().keys() - self._new:
            self._files.rm_file(old)
        self._files.upload(self.directory / _LAST, _LAST)


@contextmanager
def export_place(target: str) -> Iterator[ExportPlace]:
    """A place for the export to a directory or URL; what was not published is removed.

    Raises OSError.
    """
    if "://" in target:
        with tempfile.TemporaryDirectory(prefix="mfsdp-export-") as scratch:
            yield _Uploaded(Path(scratch), target)
    else:
        with scratch_directory(Path(target)) as directory:
            yield _Beside(directory, Path(target))
