"""Checkpoints in an object store, where nothing can be renamed and nothing is a directory.

<checkpoint.path>/step-00000200/<token>/...       files of one save; the token is that save's own
<checkpoint.path>/step-00000200/checkpoint.json   written last: this publishes the files it names
<checkpoint.path>/latest, best                    names of published ones
<checkpoint.path>/.lock                           which run may write (`lease.py`)
"""

import secrets
from contextlib import ExitStack

from obstore.store import from_url
from pydantic import ValidationError
from torch.distributed.checkpoint.filesystem import FileSystemReader

from mfsdp_trainer.errors import CheckpointError

from .files import Writer
from .lease import Lease
from .manifest import MANIFEST, FileSum, Manifest, attempt
from .objects import ObjectReader, Objects, os_errors
from .store import explained, name_of, newest_first


class Bucket:
    """See `Store`."""

    def __init__(self, url: str) -> None:
        """`url` is of a bucket and a prefix in it. Raises CheckpointError."""
        self.place = url.rstrip("/")
        with explained(self.place), os_errors(self.place):
            self.files = Objects(from_url(self.place), self.place)
        self._lease = Lease(self.files)

    def claim(self, stack: ExitStack) -> None:
        """See `Store.claim`: the lease."""
        self._lease.acquire(stack)

    def complete(self) -> list[str]:
        """See `Store.complete`."""
        with explained(self.place):
            return self._published(list(self.files.sizes()))

    def _published(self, keys: list[str]) -> list[str]:
        manifests = (key.removesuffix(f"/{MANIFEST}") for key in keys if key.endswith(MANIFEST))
        return newest_first(list(manifests))

    def manifest(self, name: str) -> Manifest | None:
        """See `Store.manifest`. Raises CheckpointError where the store gives no answer."""
        with explained(self.place):
            try:
                text, _ = self.files.text(f"{name}/{MANIFEST}")
                return Manifest.model_validate_json(text)
            except (FileNotFoundError, ValueError, ValidationError):
                return None

    def begin(self, step: int) -> str:
        """See `Store.begin`."""
        with explained(self.place):
            keys = [key for key in self.files.sizes() if key.startswith("step-")]
            kept = []
            for name in self._published(keys):
                manifest = self.manifest(name)
                kept.append(f"{name}/{MANIFEST}")
                # Of one that cannot be read nothing is known to be torn.
                kept.append(f"{name}/{manifest.directory}/" if manifest else f"{name}/")
            self._delete([key for key in keys if not key.startswith(tuple(kept))])
        return f"{name_of(step)}/{attempt()}-{secrets.token_hex(4)}"

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            self.files.rm_file(key)

    def writer(self, scratch: str) -> Writer:
        """See `Store.writer`."""
        return Writer(scratch, self.files, sync=False)

    def publish(self, scratch: str, manifest: Manifest) -> str:
        """See `Store.publish`."""
        name, _, token = scratch.partition("/")
        with explained(self.place):
            sizes = self.files.sizes(scratch)
            for file, facts in manifest.files.items():
                if sizes.get(f"{scratch}/{file}") != facts.size:
                    raise CheckpointError(
                        f"checkpoint.path {self.place}: {file} is not there as it was written: all "
                        "nodes must reach the same store"
                    )
            self._lease.require()
            complete = manifest.model_copy(update={"directory": token})
            self.files.write_text(f"{name}/{MANIFEST}", complete.model_dump_json(by_alias=True))
        return name

    def point(self, pointer: str, name: str | None) -> None:
        """See `Store.point`."""
        with explained(self.place):
            if name is not None:
                self.files.write_text(pointer, f"{name}\n")
            elif self.files.exists(pointer):
                self.files.rm_file(pointer)

    def remove(self, name: str) -> None:
        """See `Store.remove`: the manifest first."""
        with explained(self.place):
            self.files.rm_file(f"{name}/{MANIFEST}")
            self._delete(list(self.files.sizes(name)))

    def reader(self, name: str, manifest: Manifest) -> FileSystemReader:
        """See `Store.reader`."""
        return ObjectReader(f"{name}/{manifest.directory}", self.files)

    def sum(self, name: str, manifest: Manifest, file: str) -> FileSum:
        """See `Store.sum`."""
        return self.files.sum(f"{name}/{manifest.directory}/{file}")
