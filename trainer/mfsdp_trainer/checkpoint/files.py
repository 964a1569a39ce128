"""torch's writer and reader of checkpoint files, over any file system.

What is written is summed up on its way, so that no file has to be read again for its checksum.
"""

import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import (
    FileSystemBase,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .manifest import FileSum, Sum

type AnyPath = str | os.PathLike[str]


class _Summing(io.RawIOBase):
    """A stream that notes length and checksum of what is written through it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sum = Sum()
        self._open = True

    def write(self, data: Any) -> int:
        self._stream.write(data)
        self._sum.add(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._sum.taken().size

    def taken(self) -> FileSum:
        """Of what was written so far."""
        return self._sum.taken()

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if self._open:
            self._stream.flush()

    def close(self) -> None:
        """Nothing is left to do: the stream below is closed by who opened it."""
        self._open = False
        super().close()

    def fileno(self) -> int:
        return int(self._stream.fileno())


class _SummingFiles(FileSystemBase):
    """Another file system, with the sums of all files that were written."""

    def __init__(self, inner: FileSystemBase) -> None:
        self._inner = inner
        self.sums: dict[str, FileSum] = {}

    @contextmanager
    def create_stream(self, path: AnyPath, mode: str) -> Generator[io.IOBase, None, None]:
        with self._inner.create_stream(path, mode) as stream:
            if mode != "wb":
                yield stream
                return
            summing = _Summing(stream)
            yield summing
        self.sums[PurePath(path).name] = summing.taken()

    def rename(self, path: AnyPath, new_path: AnyPath) -> None:
        self._inner.rename(path, new_path)
        self.sums[PurePath(new_path).name] = self.sums.pop(PurePath(path).name)

    def concat_path(self, path: AnyPath, suffix: str) -> AnyPath:
        return self._inner.concat_path(path, suffix)

    def init_path(self, path: AnyPath) -> AnyPath:
        return self._inner.init_path(path)

    def mkdir(self, path: AnyPath) -> None:
        self._inner.mkdir(path)

    def exists(self, path: AnyPath) -> bool:
        return self._inner.exists(path)

    def rm_file(self, path: AnyPath) -> None:
        self._inner.rm_file(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: AnyPath) -> bool:
        return True


class Writer(FileSystemWriter):
    """Writes one rank's part of a checkpoint, and lets the file system's own error out.

    A full disk reaches a person as `unexpected pos 704 vs 598` otherwise: torch's archive writer
    puts its own complaint over it, and what travels between ranks has lost what it came from.
    """

    def __init__(self, path: AnyPath, files: FileSystemBase, *, sync: bool) -> None:
        super().__init__(path, sync_files=sync)
        self._summing = _SummingFiles(files)
        self.fs = cast(Any, self._summing)
        self.path = path

    @property
    def sums(self) -> dict[str, FileSum]:
        """Sum of each file that this rank wrote, by its name."""
        return self._summing.sums

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Called by torch with this rank's part."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise (_file_error(error) or error) from error


def reader(path: AnyPath, files: FileSystemBase) -> FileSystemReader:
    """Reads the files of a checkpoint."""
    made = FileSystemReader(path)
    made.fs = cast(Any, files)
    made.path = path
    return made


def _file_error(error: BaseException) -> OSError | None:
    """The OSError that an exception came from."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        link = link.__cause__ or link.__context__
    return link
