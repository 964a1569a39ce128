"""A start from another run's weights takes those alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import TINY, Recorder, Result, configuration, run_training, whole

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import CheckpointError, ConfigError, PreemptedError
from mfsdp_trainer.run import build, start_of
from mfsdp_trainer.world import World


@pytest.fixture(scope="module")
def other(gang: Gang, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 2 ranks."""
    path = tmp_path_factory.mktemp("other")
    checkpoint = {"path": str(path), "everySteps": 3, "export": False}
    config = configuration(
        text_file, path, strategy="optim_grads_params", ranks=2, checkpoint=checkpoint
    )
    assert gang.results(2, run_training, config)[0].error is None
    return path


def config(text: Path, path: Path, start: Path, ranks: int, **changes: Any) -> TrainerConfig:
    checkpoint = {
        "path": str(path), "warmStart": str(start), "everySteps": 1, "export": False,
    }  # fmt: skip
    return configuration(text, path, ranks=ranks, checkpoint=checkpoint, **changes)


def tensors(world: World, config: TrainerConfig) -> dict[str, torch.Tensor]:
    """Model and optimizer as the first step finds them."""
    loop, _ = build(config, world, Recorder(world.rank))
    start = start_of(loop)
    state = loop.engine.state()
    found = {name: whole(tensor) for name, tensor in state["model"].items()}
    for name, slots in state["optimizer"].items():
        found |= {f"{name}/{slot}": whole(tensor) for slot, tensor in slots.items()}
    return found | {"start": torch.tensor([start.step, start.consumed])}


def test_has_the_weights_and_a_fresh_optimizer_at_step_0(
    gang: Gang, other: Path, text_file: Path, tmp_path: Path
) -> None:
    resumed = gang.results(1, tensors, configuration(text_file, other))[0]
    assert resumed["start"].tolist() == [6, 72]
    chosen = config(text_file, tmp_path, other / "step-00000006", 1)
    warm = gang.results(1, tensors, chosen)[0]
    assert warm["start"].tolist() == [0, 0]
    for name, tensor in warm.items():
        if "/" in name:
            assert not tensor.any(), name
        elif name != "start":
            assert torch.equal(tensor, resumed[name]), name


def test_goes_on_from_its_own_checkpoint_after_that(
    gang: Gang, other: Path, text_file: Path, tmp_path: Path
) -> None:
    chosen = config(text_file, tmp_path, other, 2)
    first: Result = gang.results(2, run_training, chosen, 2)[0]
    assert isinstance(first.error, PreemptedError), first.error
    assert [step for step, _, _ in first.steps] == [1, 2]
    second: Result = gang.results(2, run_training, chosen)[0]
    assert second.error is None
    assert second.resumed_from == 2


@pytest.mark.parametrize(
    ("name", "changes", "kind", "says"),
    [
        ("none", {}, ConfigError, "none holds no checkpoint: name a directory step-"),
        ("", {"model": {"config": {**TINY, "hidden_size": 16}}}, ConfigError, "other parameters"),
        ("torn", {}, CheckpointError, "none of its checkpoints can be read"),
    ],
)
def test_what_it_cannot_start_from_is_told(
    gang: Gang,
    other: Path,
    text_file: Path,
    tmp_path: Path,
    name: str,
    changes: Any,
    kind: type[Exception],
    says: str,
) -> None:
    start = other if name == "" else tmp_path / name
    (tmp_path / "torn" / "step-00000001").mkdir(parents=True)
    chosen = config(text_file, tmp_path / "run", start, 2, **changes)
    for result in gang.results(2, run_training, chosen):
        assert isinstance(result.error, kind), result.error
        assert str(result.error).startswith("checkpoint.warmStart")
        assert says in str(result.error)
