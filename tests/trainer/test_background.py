"""Saves in the background: what they hold, when they count, and what becomes of them at an end."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, Result, configuration, run_training, whole

from mfsdp_trainer import loop as loop_module
from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.checkpoint.directory import Directory
from mfsdp_trainer.checkpoint.manifest import Manifest
from mfsdp_trainer.checkpoint.staging import Staging
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import CheckpointError, PreemptedError
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

HELD_OUT = {"validationFraction": 0.3}


class Held(Directory):
    """A directory whose publications wait to be let through."""

    def __init__(self, root: Path, gate: threading.Event) -> None:
        super().__init__(root)
        self._gate = gate

    def publish(self, scratch: str, manifest: Manifest) -> str:
        assert self._gate.wait(60), "waited 60 s to be let through"
        return super().publish(scratch, manifest)


class Broken(Directory):
    """A directory that takes files and publishes nothing."""

    def publish(self, scratch: str, manifest: Manifest) -> str:
        raise CheckpointError("checkpoint.path: the volume is gone")


def weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: whole(tensor) for name, tensor in state["model"].items()}


def train_beside_a_save(world: World, config: TrainerConfig) -> dict[str, Any]:
    """Two steps, and a save of the first that is held until after the second."""
    root, gate = Path(config.checkpoint.path), threading.Event()
    loop, _ = build(config, world, Recorder(world.rank), Held(root, gate))
    position, _ = loop.advance(Position(step=0, consumed=0))
    wanted = weights(loop.engine.state())
    loop.checkpoints.begin(loop.engine, position)
    loop.advance(position)
    seen = {"before": [p.name for p in root.glob("[sl]*")], "told": loop.checkpoints.poll()}
    trained_on = weights(loop.engine.state())
    gate.set()
    loop.checkpoints.finish()
    seen["told after"] = loop.checkpoints.poll()
    seen["position"] = loop.checkpoints.resume(loop.engine)
    found = weights(loop.engine.state())
    seen["exact"] = all(torch.equal(found[name], wanted[name]) for name in wanted)
    seen["moved"] = any(not torch.equal(trained_on[name], wanted[name]) for name in wanted)
    return seen


@pytest.mark.parametrize("strategy", ["ddp", "optim_grads_params"])
def test_holds_the_state_of_its_step_while_the_training_goes_on(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    config = configuration(text_file, tmp_path, strategy=strategy, ranks=2)
    for seen in gang.results(2, train_beside_a_save, config):
        assert seen == {
            "before": [],
            "told": None,
            "told after": 1,
            "position": Position(step=1, consumed=12),
            "exact": True,
            "moved": True,
        }


def save_twice(world: World, config: TrainerConfig) -> list[str]:
    """A save while another is held; what is said, and what was published when the second began."""
    root, gate = Path(config.checkpoint.path), threading.Event()
    loop, _ = build(config, world, Recorder(world.rank), Held(root, gate))
    loop.checkpoints.begin(loop.engine, Position(step=1, consumed=12))
    threading.Timer(0.3, gate.set).start()
    loop.checkpoints.begin(loop.engine, Position(step=2, consumed=24))
    told = loop.checkpoints.poll()
    loop.checkpoints.finish()
    return [str(told), str(loop.checkpoints.poll())]


def test_the_next_waits_for_the_one_before(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    config = configuration(text_file, tmp_path, strategy="optim", ranks=2)
    assert gang.results(2, save_twice, config) == [["1", "2"]] * 2


def fail_beside_training(world: World, config: TrainerConfig) -> tuple[int, str]:
    """The step that a run had come to when its first save's failure ended it, and what it said."""
    recorder = Recorder(world.rank)
    loop, _ = build(config, world, recorder, Broken(Path(config.checkpoint.path)))
    try:
        loop.run(Position(step=0, consumed=0))
    except CheckpointError as error:
        return recorder._step or 0, str(error)
    return -1, "it ended well"


def test_its_failure_ends_every_rank_at_the_same_step(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    config = configuration(
        text_file,
        tmp_path,
        ranks=2,
        training={"steps": 200},
        checkpoint={"path": str(tmp_path), "everySteps": 2, "export": False},
    )
    (step, message), other = gang.results(2, fail_beside_training, config)
    assert message == "checkpoint.path: the volume is gone"
    assert other == (step, message)
    assert 2 <= step <= 4


def stop_beside_a_save(world: World, config: TrainerConfig) -> str:
    """A stop in the second step, while the save of the first is held for a moment."""
    gate = threading.Event()
    store = Held(Path(config.checkpoint.path), gate)
    loop, _ = build(config, world, Recorder(world.rank, stop_after=2), store)
    threading.Timer(0.5, gate.set).start()
    try:
        loop.run(Position(step=0, consumed=0))
    except PreemptedError as error:
        return str(error)
    return "it ended well"


def test_a_stop_finishes_it_and_adds_its_own(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    config = configuration(
        text_file,
        tmp_path,
        ranks=2,
        checkpoint={"path": str(tmp_path), "everySteps": 1, "export": False},
    )
    said = gang.results(2, stop_beside_a_save, config)
    assert said == ["asked to stop: a checkpoint of step 2 is published"] * 2
    assert Directory(tmp_path).complete() == ["step-00000002", "step-00000001"]


def test_without_it_the_loop_waits(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    path = str(tmp_path)
    checkpoint = {"path": path, "everySteps": 2, "asynchronous": False, "export": False}
    config = configuration(text_file, tmp_path, ranks=2, checkpoint=checkpoint)
    assert gang.results(2, run_training, config)[0].error is None
    assert Directory(tmp_path).complete() == ["step-00000006", "step-00000004"]


def train_with_losses(world: World, config: TrainerConfig, losses: list[float]) -> Result:
    """A run whose evaluations come to these losses."""
    told = iter(losses)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "evaluate", lambda *_: next(told))
        return run_training(world, config)


def test_the_best_are_kept_beside_the_newest(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    lines = text_file.read_text(encoding="utf-8").splitlines()
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "{line}"}}\n' for line in lines), encoding="utf-8")
    run = tmp_path / "run"
    config = configuration(
        text,
        run,
        ranks=2,
        data={"sources": [{"path": str(text), "format": "jsonl"}], **HELD_OUT},
        checkpoint={"path": str(run), "everySteps": 1, "keep": 1, "keepBest": 2, "export": False},
    )
    losses = [9.0, 5.0, 3.0, 4.0, 3.5, 6.0, 7.0]
    for result in gang.results(2, train_with_losses, config, losses):
        assert result.error is None
    assert Directory(run).complete() == ["step-00000006", "step-00000004", "step-00000002"]
    assert (run / "best").read_text() == "step-00000002\n"
    assert (run / "latest").read_text() == "step-00000006\n"


def test_keeping_the_best_needs_held_out_text(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    config = configuration(
        text_file,
        tmp_path,
        ranks=2,
        checkpoint={"path": str(tmp_path), "keepBest": 1, "everySteps": 1},
    )
    for result in gang.results(2, run_training, config):
        assert "checkpoint.keepBest goes by the loss on held-out text" in str(result.error)


def test_copies_take_the_same_memory_each_time() -> None:
    """A save must not cost the host more with each one."""
    staging = Staging(torch.device("cpu"))
    state = {"model": {"weight": torch.ones(1000)}, "optimizer": {"step": torch.zeros(())}}
    first = staging.copy(state)["model"]["weight"]
    state["model"]["weight"].add_(1)
    assert first.sum() == 1000
    second = staging.copy(state)["model"]["weight"]
    assert second.data_ptr() == first.data_ptr()
    assert second.sum() == 2000


def test_other_tensors_are_copied_too() -> None:
    """An optimizer may replace a tensor in place of changing it."""
    staging = Staging(torch.device("cpu"))
    state = {"weight": torch.ones(10), "step": torch.zeros(())}
    staging.copy(state)
    state["step"] = torch.ones(())
    state["more"] = torch.full((3,), 2.0)
    copied = staging.copy(state)
    assert {name: float(tensor.sum()) for name, tensor in copied.items()} == {
        "weight": 10,
        "step": 1,
        "more": 6,
    }
