"""Objects in a bucket, as files for torch's writer and reader of checkpoints.

obstore itself rather than its fsspec layer: the same calls also give conditional writes, which
claims are made of, and errors with a type. Credentials, region and endpoint come from the
environment alone (AWS_*, GOOGLE_*, AZURE_*) or from the identity of the pod.
"""

import errno
import io
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import obstore
from obstore.exceptions import BaseError
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader

from .files import AnyPath
from .manifest import FileSum, Sum

_PART: Final = 1 << 25
"""Bytes of an upload's parts. S3 takes 10,000 of them: 320 GiB a file, one file a rank."""
_UPLOADS: Final = 4
"""Parts under way at once."""
_READ_AHEAD: Final = 1 << 20
_ANSWER: Final = re.compile(r"<Code>(\w+)</Code>.*?<Message>([^<]*)</Message>", re.DOTALL)


@contextmanager
def os_errors(url: str) -> Iterator[None]:
    """Errors of an object store as those of a file system: OSErrors that name the object."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _said(error), url) from error
    except PermissionError as error:
        raise PermissionError(errno.EACCES, _said(error), url) from error
    except BaseError as error:
        raise OSError(errno.EIO, _said(error), url) from error


def _said(error: Exception) -> str:
    """The store's own code and message where it answered, else the client's first line."""
    answer = _ANSWER.search(str(error))
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{answer[1]}: {answer[2].strip()}" if answer else first


class Objects(FileSystemBase):
    """Paths are keys below the URL that `store` was made from. An object appears when its stream
    is closed, whole; one that was not finished never does.
    """

    def __init__(self, store: Any, place: str) -> None:
        self.store = store
        self._place = place

    def url(self, path: AnyPath) -> str:
        """A key, for messages."""
        return f"{self._place}/{path}"

    @contextmanager
    def create_stream(self, path: AnyPath, mode: str) -> Generator[io.IOBase, None, None]:
        """Read or write an object as a stream."""
        with os_errors(self.url(path)):
            if mode == "rb":
                yield io.BufferedReader(_Reading(self.store, str(path)), _READ_AHEAD)
                return
            writer = obstore.open_writer(
                self.store, str(path), buffer_size=_PART, max_concurrency=_UPLOADS
            )
            yield _Copying(writer)
            # Not reached on an error: what is not closed does not come to be.
            writer.close()

    def concat_path(self, path: AnyPath, suffix: str) -> str:
        """A key below another."""
        return f"{path}/{suffix}"

    def init_path(self, path: AnyPath) -> str:
        """Keys need no preparation."""
        return str(path)

    def rename(self, path: AnyPath, new_path: AnyPath) -> None:
        """Copy and delete: for torch's small index, which it writes under another name first."""
        with os_errors(self.url(path)):
            obstore.rename(self.store, str(path), str(new_path))

    def mkdir(self, path: AnyPath) -> None:
        """There are no directories."""

    def exists(self, path: AnyPath) -> bool:
        """Whether there is such an object."""
        try:
            with os_errors(self.url(path)):
                obstore.head(self.store, str(path))
        except FileNotFoundError:
            return False
        return True

    def rm_file(self, path: AnyPath) -> None:
        """Delete an object."""
        with os_errors(self.url(path)):
            obstore.delete(self.store, str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: AnyPath) -> bool:
        """Never asked for: the writer is given its files."""
        return False

    def text(self, path: str) -> tuple[str, str | None]:
        """A small object, and the tag of the version that was read. Raises OSError."""
        with os_errors(self.url(path)):
            answer = obstore.get(self.store, path)
            return bytes(answer.bytes()).decode("utf-8", "replace"), answer.meta["e_tag"]

    def write_text(self, path: str, text: str) -> None:
        """Write a small object, all at once. Raises OSError."""
        with os_errors(self.url(path)):
            obstore.put(self.store, path, text.encode())

    def upload(self, file: Path, path: str) -> None:
        """Copy a local file, all at once. Raises OSError."""
        with os_errors(self.url(path)):
            obstore.put(self.store, path, file, chunk_size=_PART, max_concurrency=_UPLOADS)

    def sizes(self, below: str | None = None) -> dict[str, int]:
        """All keys, or those below one, with their sizes. Raises OSError."""
        with os_errors(self._place):
            found = obstore.list(self.store, below).collect()
        return {entry["path"]: entry["size"] for entry in found}

    def sum(self, path: str) -> FileSum:
        """Read an object through. Raises OSError."""
        total = Sum()
        with os_errors(self.url(path)):
            for chunk in obstore.get(self.store, path).stream():
                total.add(chunk)
        return total.taken()


class _Copying(io.RawIOBase):
    """What is written to an object, copied first.

    obstore keeps the buffers that it is given, without copying them, until a part is full; torch
    writes its next bytes into the same buffer. The object would hold the last ones over and over.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        copied = bytes(data)
        self._writer.write(copied)
        return len(copied)


class _Reading(io.RawIOBase):
    """An object to read at any offset: a request a read."""

    def __init__(self, store: Any, path: str) -> None:
        self._store = store
        self._path = path
        self._size: int = obstore.head(store, path)["size"]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = obstore.get_range(self._store, self._path, start=self._at, length=length)
        buffer[: len(data)] = memoryview(data)
        self._at += len(data)
        return len(data)


class ObjectReader(FileSystemReader):
    """Reads each part of a tensor with one request."""

    def __init__(self, path: str, files: Objects) -> None:
        super().__init__(path)
        self.fs = cast(Any, files)
        self.path = cast(Any, path)

    def _slice_file(self, file: Any, sinfo: Any) -> io.BytesIO:
        file.seek(sinfo.offset)
        return io.BytesIO(file.read(sinfo.length))
