"""Names, publication and retention of checkpoints in a directory."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from mfsdp_trainer.checkpoint.directory import Directory
from mfsdp_trainer.checkpoint.manifest import FileSum, Identity, Manifest, Position, Sum
from mfsdp_trainer.checkpoint.retention import best_first, redundant
from mfsdp_trainer.checkpoint.store import BEST, LATEST, damage
from mfsdp_trainer.errors import CheckpointError


def save(root: Path, step: int) -> Path:
    store = Directory(root)
    scratch = root / store.begin(step)
    (scratch / "__0_0.distcp").write_bytes(b"weights %d" % step)
    return root / store.publish(scratch.name, manifest(scratch, step))


def manifest(scratch: Path, step: int) -> Manifest:
    total = Sum()
    total.add((scratch / "__0_0.distcp").read_bytes())
    return Manifest(
        position=Position(step=step, consumed=step * 8),
        identity=Identity(parameters="p", tokenizer="t", order="o"),
        world_size=1,
        attempt="0",
        files={"__0_0.distcp": total.taken()},
    )


def test_the_newest_comes_first_and_what_is_no_checkpoint_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "step-00000007").touch()
    (tmp_path / "step-7").mkdir()
    for step in (5, 10, 100, 20_000_000_0):
        save(tmp_path, step)
    assert Directory(tmp_path).complete() == [
        "step-200000000",
        "step-00000100",
        "step-00000010",
        "step-00000005",
    ]
    assert Directory(tmp_path / "nowhere").complete() == []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is made durable and renamed, in order: what a power cut would find, and a kill cannot
    show."""
    told: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        told.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        told.append(f"name {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    return told


def test_it_gets_its_name_when_all_of_it_is_durable(tmp_path: Path, told: list[str]) -> None:
    name = save(tmp_path, 1).name
    at = told.index(f"name {name}")
    files = ["__0_0.distcp", "checkpoint.json", f".saving-{name}-attempt-0"]
    assert sorted(told[:at]) == sorted(f"sync {file}" for file in files)
    assert told[at + 1 :] == [f"sync {tmp_path.name}"]


def test_ranks_make_their_own_files_durable(tmp_path: Path, told: list[str]) -> None:
    """What waits in the memory of another node, the one that publishes cannot write out."""
    store = Directory(tmp_path)
    writer = store.writer(store.begin(1))
    dcp.save({"weight": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert "sync __0_0.distcp" in told


def test_pointers_are_for_people(tmp_path: Path) -> None:
    store = Directory(tmp_path)
    store.point(LATEST, "step-00000005")
    store.point(BEST, "step-00000003")
    assert (tmp_path / "latest").read_text() == "step-00000005\n"
    store.point(BEST, None)
    assert not (tmp_path / "best").exists()


def test_what_is_removed_is_no_checkpoint_any_more_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Directory(tmp_path).remove("step-00000001")
    assert Directory(tmp_path).complete() == []
    save(tmp_path, 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-00000002"]


LOSSES = {
    "step-00000010": 3.0,
    "step-00000020": 1.0,
    "step-00000030": 1.0,
    "step-00000040": None,
    "step-00000050": 2.0,
}


@pytest.mark.parametrize(
    ("keep", "keep_best", "gone"),
    [
        (1, 0, [10, 20, 30, 40]),
        (2, 0, [10, 20, 30]),
        (1, 1, [10, 20, 40]),
        (2, 2, [10]),
        (1, 9, [40]),
        (9, 0, []),
    ],
)
def test_the_newest_and_the_best_are_kept(keep: int, keep_best: int, gone: list[int]) -> None:
    extra = redundant(LOSSES, "step-00000050", keep=keep, keep_best=keep_best)
    assert sorted(extra) == [f"step-{step:08d}" for step in gone]


def test_of_equal_losses_the_newest_is_best() -> None:
    assert best_first(LOSSES)[0] == "step-00000030"


def test_steps_of_a_run_that_was_started_over_go_even_the_best() -> None:
    extra = redundant(LOSSES, "step-00000010", keep=5, keep_best=5)
    assert sorted(extra) == sorted(LOSSES)[1:]


def test_a_damaged_one_takes_no_good_one_s_place() -> None:
    damaged = frozenset({"step-00000040"})
    extra = redundant(LOSSES, "step-00000050", keep=2, keep_best=0, damaged=damaged)
    assert sorted(extra) == ["step-00000010", "step-00000020", "step-00000040"]


def test_what_stands_in_the_way_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".saving-step-00000001-attempt-0").write_text("a file")
    (tmp_path / ".step-00000001.replaced").write_text("a file")
    save(tmp_path, 1)
    assert Directory(tmp_path).complete() == ["step-00000001"]
    assert not list(tmp_path.glob(".s*"))


@pytest.mark.parametrize(
    ("old", "new"), [('"step":5', '"step":-5'), ('"format":1', '"format":2'), ("}", "")]
)
def test_a_manifest_that_cannot_be_is_none(tmp_path: Path, old: str, new: str) -> None:
    file = save(tmp_path, 5) / "checkpoint.json"
    file.write_text(file.read_text().replace(old, new))
    assert Directory(tmp_path).manifest("step-00000005") is None


def test_a_torn_one_is_no_checkpoint_and_goes_with_the_next(tmp_path: Path) -> None:
    save(tmp_path, 1)
    torn = tmp_path / Directory(tmp_path).begin(2)
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert Directory(tmp_path).complete() == ["step-00000001"]
    save(tmp_path, 3)
    assert not torn.exists()


def test_a_file_that_is_not_here_is_not_published(tmp_path: Path) -> None:
    save(tmp_path, 1)
    store = Directory(tmp_path)
    scratch = tmp_path / store.begin(2)
    (scratch / "__0_0.distcp").write_bytes(b"weights")
    facts = manifest(scratch, 2)
    files = {**facts.files, "__1_0.distcp": FileSum(size=1, crc32=1)}
    wanting = facts.model_copy(update={"files": files})
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp of another node is not here"):
        store.publish(scratch.name, wanting)
    (scratch / "__1_0.distcp").touch()
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp has 0 bytes where 1 were written"):
        store.publish(scratch.name, wanting)
    assert store.complete() == ["step-00000001"]


def test_damage_is_seen(tmp_path: Path) -> None:
    published = save(tmp_path, 1)
    store, name = Directory(tmp_path), published.name
    facts = store.manifest(name)
    assert facts is not None
    assert damage(store, name, facts, part=0, parts=1) is None
    (published / "__0_0.distcp").write_bytes(b"weights 2")
    assert damage(store, name, facts, part=0, parts=1) == (
        "__0_0.distcp: its contents changed since it was written"
    )
    assert damage(store, name, facts, part=1, parts=2) is None


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint\.path: cannot write .*Not a directory"):
        Directory(tmp_path / "file" / "below").begin(1)


def test_nothing_is_written_where_the_claimed_directory_was(tmp_path: Path) -> None:
    """As under a volume that went away."""
    root = tmp_path / "run"
    store = Directory(root)
    with ExitStack() as stack:
        store.claim(stack)
        scratch = store.begin(1)
        root.rename(tmp_path / "gone")
        with pytest.raises(CheckpointError, match="not the directory any more"):
            store.begin(2)
        root.mkdir()
        (root / ".lock").touch()
        with pytest.raises(CheckpointError, match="its volume went away"):
            store.publish(scratch, manifest_of_nothing())
    assert [entry.name for entry in root.iterdir()] == [".lock"]


def manifest_of_nothing() -> Manifest:
    return Manifest(
        position=Position(step=1, consumed=8),
        identity=Identity(parameters="p", tokenizer="t", order="o"),
        world_size=1,
        attempt="0",
        files={},
    )
