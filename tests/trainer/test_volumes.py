"""Volumes that get full, read-only or lost while a run saves: one line, on every rank."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, Result, configuration, run_training

from mfsdp_trainer.checkpoint.directory import Directory
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import CheckpointError
from mfsdp_trainer.export import model as export_module
from mfsdp_trainer.run import train
from mfsdp_trainer.world import World

type Harm = Callable[[Path], None]


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where this machine lets us make one."""
    place = tmp_path / "volume"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("mounting a small volume needs root")
    try:
        mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small volume here: {error}")
    yield place
    for _ in range(2):
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def fill(volume: Path) -> None:
    """Leave 100 kB."""
    with (volume / "other").open("wb") as file:
        free = os.statvfs(volume)
        file.write(bytes(free.f_bavail * free.f_bsize - 100_000))


def make_read_only(volume: Path) -> None:
    # Another mount over it: the one below has the lock open.
    mount("--bind", str(volume), str(volume))
    mount("-o", "remount,bind,ro", str(volume))


def lose(volume: Path) -> None:
    subprocess.run(["umount", "--lazy", str(volume)], check=True, capture_output=True)


class Harmed(Recorder):
    """Rank 0 does the harm once the first checkpoint is told."""

    def __init__(self, rank: int, harm: Harm, volume: Path) -> None:
        super().__init__(rank)
        self._harm = harm
        self._volume = volume

    def progress(self, **fields: Any) -> None:
        super().progress(**fields)
        if fields.get("checkpoint_step") == 2 and self.rank == 0:
            self._harm(self._volume)


def train_until_harmed(world: World, config: TrainerConfig, harm: Harm, volume: Path) -> str:
    try:
        train(config, world, Harmed(world.rank, harm, volume))
    except CheckpointError as error:
        return str(error)
    return "it ended well"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (fill, "No space left on device: give it a volume with room"),
        (make_read_only, "Read-only file system: give it a volume with room that the trainer's"),
        (lose, "its volume went away, or somebody removed it"),
    ],
)
def test_ends_every_rank_with_the_reason(
    gang: Gang, text_file: Path, tmp_path: Path, volume: Path, harm: Harm, says: str
) -> None:
    run = volume / "run"
    config = configuration(
        text_file,
        run,
        strategy="optim_grads_params",
        ranks=2,
        training={"steps": 40},
        data={"sources": [{"path": str(text_file)}], "cachePath": str(tmp_path / "data")},
        checkpoint={"path": str(run), "everySteps": 2, "keep": 1, "export": False},
    )
    messages = gang.results(2, train_until_harmed, config, harm, volume)
    assert messages[0] == messages[1]
    assert messages[0].startswith("checkpoint.path: ")
    assert says in messages[0]
    if harm is not lose:
        assert Directory(run).complete() == ["step-00000002"]


def train_on_the_wrong_volume(world: World, config: TrainerConfig, root: Path) -> Result:
    """Every rank its own directory, as where a claim is not shared."""
    path = str(root / f"node-{world.rank}")
    checkpoint = config.checkpoint.model_copy(update={"path": path})
    return run_training(world, config.model_copy(update={"checkpoint": checkpoint}))


def test_a_node_with_another_volume_is_told(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    config = configuration(
        text_file,
        tmp_path,
        strategy="optim_grads_params",
        ranks=2,
        data={"sources": [{"path": str(text_file)}], "cachePath": str(tmp_path / "data")},
    )
    for result in gang.results(2, train_on_the_wrong_volume, config, tmp_path):
        assert isinstance(result.error, CheckpointError), result.error
        assert "__1_0.distcp of another node is not here: it must be one dir" in str(result.error)
    assert Directory(tmp_path / "node-0").complete() == []


def export_onto_a_full_disk(world: World, config: TrainerConfig) -> Result:
    """A run whose second file of weights does not fit."""
    written = []

    def save_file(tensors: Any, file: Path, **_options: Any) -> None:
        written.append(file)
        file.touch()
        if len(written) == 2:
            raise SafetensorError("I/O error: No space left on device (os error 28)")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "SHARD_BYTES", 30_000)
        patch.setattr(export_module, "save_file", save_file)
        return run_training(world, config)


def test_half_an_export_is_none_and_the_one_before_stays(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    config = configuration(
        text_file,
        tmp_path,
        strategy="optim",
        ranks=2,
        checkpoint={"path": str(tmp_path), "export": True},
    )
    assert gang.results(2, run_training, config)[0].error is None
    before = (tmp_path / "export" / "model.safetensors").read_bytes()
    for result in gang.results(2, export_onto_a_full_disk, config):
        assert isinstance(result.error, CheckpointError), result.error
        assert "No space left on device (os error 28): give it a volume" in str(result.error)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".export*"))
