"""Objects as files, on a store in memory."""

import io
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from mfsdp_trainer.checkpoint.manifest import Sum
from mfsdp_trainer.checkpoint.objects import Objects


@pytest.fixture
def files() -> Objects:
    return Objects(MemoryStore(), "s3://bucket/run")


def test_what_is_written_is_what_the_buffer_held_then(files: Objects) -> None:
    """Writers use one buffer again and again, as torch does."""
    buffer, total = bytearray(1000), Sum()
    with files.create_stream("a/b", "wb") as stream:
        for byte in range(5):
            buffer[:] = bytes([byte]) * len(buffer)
            stream.write(memoryview(buffer))
            total.add(buffer)
    assert files.sum("a/b") == total.taken()
    assert files.sizes("a") == {"a/b": 5000}


def test_an_object_that_was_not_finished_never_comes_to_be(files: Objects) -> None:
    def tear() -> None:
        with files.create_stream("torn", "wb") as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tear()
    assert not files.exists("torn")


def test_reads_at_any_place(files: Objects) -> None:
    files.write_text("text", "0123456789")
    with files.create_stream("text", "rb") as stream:
        assert stream.seek(-3, io.SEEK_END) == 7
        assert stream.read() == b"789"
        assert stream.seek(2) == 2
        assert stream.read(3) == b"234"
        assert stream.tell() == 5


def test_files_are_uploaded_and_objects_renamed(files: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    files.upload(tmp_path / "file", "one")
    files.rename("one", "two")
    assert files.sizes() == {"two": 7}
    assert bytes(obstore.get(files.store, "two").bytes()) == b"content"
    files.rm_file("two")
    with pytest.raises(FileNotFoundError) as caught:
        files.text("two")
    assert caught.value.filename == "s3://bucket/run/two"
