"""Names, publication and retention of checkpoints."""

from pathlib import Path

import pytest

from mfsdp_trainer.checkpoint import directory
from mfsdp_trainer.checkpoint.manifest import (
    FileSum,
    Identity,
    Manifest,
    Position,
    damage,
    read_manifest,
    sum_file,
)
from mfsdp_trainer.errors import CheckpointError


def save(root: Path, step: int, keep: int = 2) -> Path:
    scratch = directory.begin(root, step)
    (scratch / "__0_0.distcp").write_bytes(b"weights %d" % step)
    return directory.publish(scratch, manifest(scratch, step), keep=keep)


def manifest(scratch: Path, step: int) -> Manifest:
    return Manifest(
        position=Position(step=step, consumed=step * 8),
        identity=Identity(parameters="p", tokenizer="t", order="o"),
        world_size=1,
        attempt="0",
        files={"__0_0.distcp": sum_file(scratch / "__0_0.distcp")},
    )


def names(root: Path) -> list[str]:
    return [entry.name for entry in directory.complete(root)]


def test_keeps_the_newest(tmp_path: Path) -> None:
    for step in (5, 10, 100, 20_000):
        published = save(tmp_path, step)
        assert (tmp_path / "latest").read_text().strip() == published.name
    assert names(tmp_path) == ["step-00020000", "step-00000100"]


def test_steps_of_a_run_that_was_started_over_do_not_win(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 5)
    assert names(tmp_path) == ["step-00000005"]


def test_what_stands_in_the_way_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".saving-step-00000001-attempt-0").write_text("a file")
    (tmp_path / ".step-00000001.replaced").write_text("a file")
    save(tmp_path, 1)
    assert names(tmp_path) == ["step-00000001"]
    assert not list(tmp_path.glob(".s*"))


@pytest.mark.parametrize(
    ("old", "new"), [('"step":5', '"step":-5'), ('"format":1', '"format":2'), ("}", "")]
)
def test_a_manifest_that_cannot_be_is_none(tmp_path: Path, old: str, new: str) -> None:
    file = save(tmp_path, 5) / "checkpoint.json"
    file.write_text(file.read_text().replace(old, new))
    assert read_manifest(file.parent) is None


def test_a_torn_one_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    save(tmp_path, 1)
    torn = directory.begin(tmp_path, 2)
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert names(tmp_path) == ["step-00000001"]
    save(tmp_path, 3)
    assert not torn.exists()


def test_a_file_that_is_not_here_is_not_published(tmp_path: Path) -> None:
    save(tmp_path, 1)
    scratch = directory.begin(tmp_path, 2)
    (scratch / "__0_0.distcp").write_bytes(b"weights")
    facts = manifest(scratch, 2)
    files = {**facts.files, "__1_0.distcp": FileSum(size=1, crc32=1)}
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp of another node is not here"):
        directory.publish(scratch, facts.model_copy(update={"files": files}), keep=2)
    assert names(tmp_path) == ["step-00000001"]


def test_damage_is_seen(tmp_path: Path) -> None:
    published = save(tmp_path, 1)
    facts = read_manifest(published)
    assert facts is not None
    assert damage(published, facts, part=0, parts=1) is None
    (published / "__0_0.distcp").write_bytes(b"weights 2")
    assert damage(published, facts, part=0, parts=1) == (
        "__0_0.distcp: its contents changed since it was written"
    )
    assert damage(published, facts, part=1, parts=2) is None


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint\.path: cannot write .*Not a directory"):
        directory.begin(tmp_path / "file" / "below", 1)
