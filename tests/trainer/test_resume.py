"""A run that was stopped goes on exactly, on any world size and engine; damage is passed over."""

import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import TINY, Recorder, Result, configuration, run_training, whole

from mfsdp_trainer.checkpoint.directory import Directory
from mfsdp_trainer.claim import claimed
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import Env, Reason
from mfsdp_trainer.errors import CheckpointError, ConfigError, PreemptedError
from mfsdp_trainer.run import build, train
from mfsdp_trainer.world import World

STOP = 3
MODEL = {"config": {**TINY, "attention_dropout": 0.1}}


def config(text: Path, path: Path, strategy: str, ranks: int, **changes: Any) -> TrainerConfig:
    """A run that saves every step; `changes` are sections to overlay."""
    changes.setdefault("checkpoint", {"everySteps": 1, "keep": 3})
    checkpoint = {"path": str(path), "export": False, **changes.pop("checkpoint")}
    return configuration(
        text, path, strategy=strategy, ranks=ranks, checkpoint=checkpoint, **changes
    )


def copy_of(directory: Path, target: Path) -> Path:
    """A copy to resume from, so that one stopped run serves many."""
    shutil.copytree(directory, target)
    return target


@pytest.fixture(scope="module")
def undisturbed(
    gang: Gang, text_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[int, float, float]]:
    path = tmp_path_factory.mktemp("undisturbed")
    results = gang.results(2, run_training, config(text_file, path, "optim_grads_params", 2))
    assert [result.error for result in results] == [None, None]
    return list(results[0].steps)


@pytest.fixture(scope="module")
def stopped(gang: Gang, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a run of 2 ranks that rank 0 alone was asked to stop after step 3."""
    path = tmp_path_factory.mktemp("stopped") / "checkpoints"
    chosen = config(text_file, path, "optim_grads_params", 2)
    results = gang.results(2, run_training, chosen, STOP)
    for result in results:
        assert isinstance(result.error, PreemptedError), result.error
        assert result.error.reason is Reason.PREEMPTED
        assert "step 3 is published" in str(result.error)
    return path


def state_digest(world: World, config: TrainerConfig) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer after a resume, whole."""
    loop, _ = build(config, world, Recorder(world.rank))
    position = loop.checkpoints.resume(loop.engine)
    assert position is not None
    assert position.step == STOP
    state = loop.engine.state()
    found = {name: whole(tensor) for name, tensor in state["model"].items()}
    for name, slots in state["optimizer"].items():
        found |= {f"{name}/{slot}": whole(tensor) for slot, tensor in slots.items()}
    return found


def test_what_is_loaded_is_the_same_on_any_world_size_and_engine(
    gang: Gang, stopped: Path, text_file: Path
) -> None:
    cases = [("optim_grads_params", 2), ("optim", 1), ("ddp", 1), ("no_shard", 4), ("ddp", 4)]
    loaded = [
        gang.results(ranks, state_digest, config(text_file, stopped, strategy, ranks))[0]
        for strategy, ranks in sorted(cases, key=lambda case: case[1])
    ]
    for other in loaded[1:]:
        assert other.keys() == loaded[0].keys()
        for name, tensor in other.items():
            assert torch.equal(tensor, loaded[0][name]), name
    assert loaded[0]["model.norm.weight/step"] == STOP


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("ddp", 1), ("optim_grads", 2), ("no_shard", 4), ("optim_grads_params", 4)],
)
def test_goes_on_as_if_nothing_had_happened(
    gang: Gang,
    stopped: Path,
    undisturbed: list[tuple[int, float, float]],
    text_file: Path,
    tmp_path: Path,
    strategy: str,
    ranks: int,
) -> None:
    path = copy_of(stopped, tmp_path / "checkpoints")
    result = gang.results(ranks, run_training, config(text_file, path, strategy, ranks))[0]
    assert result.error is None
    assert result.resumed_from == STOP
    assert [step for step, _, _ in result.steps] == [4, 5, 6]
    for (_, loss, norm), (_, wanted_loss, wanted_norm) in zip(
        result.steps, undisturbed[STOP:], strict=True
    ):
        assert loss == pytest.approx(wanted_loss, abs=1e-5)
        assert norm == pytest.approx(wanted_norm, abs=1e-4)


def test_is_bit_identical_on_the_same_ranks_dropout_too(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    whole_run = config(text_file, tmp_path / "a", "optim_grads_params", 2, model=MODEL)
    halves = config(text_file, tmp_path / "b", "optim_grads_params", 2, model=MODEL)
    undisturbed = gang.results(2, run_training, whole_run)[0]
    gang.results(2, run_training, halves, STOP)
    resumed = gang.results(2, run_training, halves)[0]
    assert resumed.resumed_from == STOP
    assert resumed.steps == undisturbed.steps[STOP:]


def truncate(checkpoint: Path) -> None:
    file = checkpoint / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])


def flip_one_bit(checkpoint: Path) -> None:
    file = checkpoint / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "__1_0.distcp").unlink()


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / "checkpoint.json").write_text("{", encoding="utf-8")


def spoil_the_metadata(checkpoint: Path) -> None:
    (checkpoint / ".metadata").write_bytes(b"not a pickle")


@pytest.mark.parametrize(
    "damage", [truncate, flip_one_bit, lose_a_file, lose_the_manifest, spoil_the_metadata]
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    gang: Gang, stopped: Path, text_file: Path, tmp_path: Path, damage: Any
) -> None:
    path = copy_of(stopped, tmp_path / "checkpoints")
    damage(path / "step-00000003")
    result = gang.results(2, run_training, config(text_file, path, "optim", 2))[0]
    assert result.error is None
    assert result.resumed_from == 2
    assert any("step-00000003 is damaged and skipped" in text for text in result.warnings)
    assert [step for step, _, _ in result.steps] == [3, 4, 5, 6]


def test_nothing_is_started_over_when_all_are_damaged(
    gang: Gang, stopped: Path, text_file: Path, tmp_path: Path
) -> None:
    path = copy_of(stopped, tmp_path / "checkpoints")
    for checkpoint in path.glob("step-*"):
        truncate(checkpoint)
    for result in gang.results(2, run_training, config(text_file, path, "optim", 2)):
        assert isinstance(result.error, CheckpointError)
        assert "none of its 3 checkpoints can be read" in str(result.error)


def test_keeps_the_newest_and_points_to_it(stopped: Path) -> None:
    assert sorted(entry.name for entry in stopped.glob("step-*")) == [
        "step-00000001",
        "step-00000002",
        "step-00000003",
    ]
    assert (stopped / "latest").read_text(encoding="utf-8") == "step-00000003\n"
    manifest = Directory(stopped).manifest("step-00000003")
    assert manifest is not None
    assert (manifest.position.step, manifest.position.consumed) == (3, 36)
    assert not list(stopped.glob(".saving-*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": {"resume": "never"}}, "checkpoint.resume is never, but"),
        (
            {"model": {"config": {**TINY, "hidden_size": 16}}},
            "step-00000003 is of a model with other parameters",
        ),
        (
            {
                "data": {"tokenizer": {"kind": "bpe", "vocabSize": 300}},
                "model": {"config": {**TINY, "vocab_size": 300}},
            },
            "step-00000003 is of a model with other parameters",
        ),
        (
            {"model": {"config": {**TINY, "num_attention_heads": 2, "num_key_value_heads": 1}}},
            "step-00000003 is of a model with the same parameters but other heads",
        ),
        (
            {"training": {"steps": 2}},
            "training.steps is 2, but checkpoint.path",
        ),
    ],
)
def test_refuses_checkpoints_of_another_run(
    gang: Gang, stopped: Path, text_file: Path, tmp_path: Path, changes: Any, message: str
) -> None:
    path = copy_of(stopped, tmp_path / "checkpoints")
    for result in gang.results(2, run_training, config(text_file, path, "optim", 2, **changes)):
        assert isinstance(result.error, ConfigError), result.error
        assert message in str(result.error)


@pytest.mark.parametrize(("job", "goes_on"), [("a", True), ("b", False)])
def test_never_resumes_only_the_job_s_own_earlier_attempt(
    gang: Gang, text_file: Path, tmp_path: Path, job: str, goes_on: bool
) -> None:
    chosen = config(text_file, tmp_path, "ddp", 1, checkpoint={"resume": "never"})
    assert gang.results(1, train_as_job, chosen, "a", 2)[0].error is not None
    result = gang.results(1, train_as_job, chosen, job)[0]
    assert result.resumed_from == (2 if goes_on else None)
    assert goes_on or isinstance(result.error, ConfigError), result.error


def train_as_job(
    world: World, config: TrainerConfig, job: str, stop_after: int | None = None
) -> Result:
    """A run of a job with that uid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(Env.JOB_UID, job)
        return run_training(world, config, stop_after)


def test_a_directory_in_use_ends_every_rank(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    with claimed(tmp_path):
        for result in gang.results(2, run_training, config(text_file, tmp_path, "optim", 2)):
            assert isinstance(result.error, CheckpointError), result.error
            assert f"checkpoint.path: {tmp_path} is in use by another run" in str(result.error)


class FullDisk(Recorder):
    """After the first checkpoint the kernel refuses the last rank files of more than 1,000 bytes.

    As a full volume would: in the middle of the second checkpoint, on one rank.
    """

    def progress(self, **fields: Any) -> None:
        super().progress(**fields)
        if fields.get("checkpoint_step") == 1 and self.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def fail_to_save(world: World, config: TrainerConfig) -> str:
    """What ended a run on a disk that gets full."""
    try:
        train(config, world, FullDisk(world.rank))
    except CheckpointError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    return "it ended well"


def test_a_full_disk_ends_every_rank_and_spoils_nothing(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    chosen = config(text_file, tmp_path, "optim_grads_params", 2)
    for message in gang.results(2, fail_to_save, chosen):
        assert message.startswith("checkpoint.path: cannot write ")
        assert "File too large: give it a volume with room" in message
    assert [entry.name for entry in tmp_path.glob("step-*")] == ["step-00000001"]
    resumed = gang.results(2, run_training, chosen)[0]
    assert resumed.error is None
    assert resumed.resumed_from == 1
