"""What a person and a machine are told of a real run, over a stop and a resumption."""

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer.gang import Gang, Raised
from tests.trainer.runs import Result, configuration, run_training
from torch.distributed.device_mesh import init_device_mesh

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import Reason
from mfsdp_trainer.errors import reason_of
from mfsdp_trainer.world import World


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def logged_run(
    world: World, config: TrainerConfig, stop_after: int | None = None
) -> tuple[Result, list[str]]:
    """A run, and what this rank logged."""
    logger, lines = logging.getLogger("mfsdp_trainer"), Lines()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        return run_training(world, config, stop_after), lines.texts
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("story")


@pytest.fixture(scope="module")
def story(
    gang: Gang, text_file: Path, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """The log of rank 0 and the JSON lines of a run that was stopped at step 3 and finished."""
    text = tmp_path_factory.mktemp("text")
    lines = text_file.read_text(encoding="utf-8").splitlines(keepends=True)
    for number in range(20):
        part = "".join(lines[number * 20 : number * 20 + 20])
        (text / f"{number}.txt").write_text(part, encoding="utf-8")
    config = configuration(
        text,
        checkpoints,
        strategy="optim_grads_params",
        ranks=2,
        data={"validationFraction": 0.2},
        checkpoint={"export": True},
        logging={
            "jsonLines": str(checkpoints / "run.jsonl"),
            "everySteps": 2,
            "profile": {"startStep": 2, "steps": 2},
        },
    )
    logs = []
    for stop_after in (3, None):
        first, second = gang.results(2, logged_run, config, stop_after)
        assert not second[1]  # rank 1 has nothing to say
        logs.append(first[1])
    lines = [json.loads(line) for line in (checkpoints / "run.jsonl").read_text().splitlines()]
    return logs, lines


def test_one_line_an_interval(story: tuple[list[list[str]], list[dict[str, Any]]]) -> None:
    logs, _ = story
    assert [line.split()[1] for line in logs[0] if line.startswith("step ") and "/6" in line] == [
        "2/6"
    ]
    (line,) = [line for line in logs[1] if line.startswith("step 6/6")]
    for part in (
        "loss ",
        "norm ",
        "lr ",
        " tokens/s (",
        " a process)",
        "memory ",
        "peak ",
        "ETA 0",
    ):
        assert part in line
    assert "MFU" not in line  # the peak of a CPU is not known


def test_start_and_summary(story: tuple[list[list[str]], list[dict[str, Any]]]) -> None:
    logs, _ = story
    for log in logs:
        (start,) = [line for line in log if line.startswith("first step done after ")]
        assert all(part in start for part in ("imports ", "model ", "first step "))
        summary = [line for line in log if line.startswith("summary: ")]
        assert any(" tokens/s after the first step" in line for line in summary)
        assert any("checkpoint of step" in line for line in summary)
    assert any("summary: the model is in " in line for line in logs[1])
    assert not any("summary: the model is in " in line for line in logs[0])


def test_json_lines_tell_the_whole_story(
    story: tuple[list[list[str]], list[dict[str, Any]]],
) -> None:
    _, lines = story
    assert [(line["kind"], line["step"]) for line in lines if line["kind"] != "evaluation"] == [
        *(("run", 0), ("step", 2), ("checkpoint", 3), ("end", 3)),
        *(("run", 3), ("step", 4), ("step", 6), ("checkpoint", 6), ("export", 6), ("end", 6)),
    ]
    stopped, done = [line for line in lines if line["kind"] == "end"]
    assert (stopped["reason"], done["reason"]) == ("Preempted", "Done")
    assert (stopped["steps"], done["steps"]) == (3, 3)
    step = next(line for line in lines if line["kind"] == "step")
    assert step["tokensPerSecond"] == pytest.approx(2 * step["tokensPerSecondPerRank"])
    assert step["peakMemoryBytes"] >= step["memoryBytes"] > 10 << 20
    assert done["tokensPerSecond"] > 0
    assert done["lowestEvalLoss"] <= done["evalLoss"]
    assert {"data", "model", "first_step", "training", "saving", "exporting"} <= set(
        done["seconds"]
    )


def test_steps_are_traced_unasked(
    story: tuple[list[list[str]], list[dict[str, Any]]], checkpoints: Path
) -> None:
    (file,) = (checkpoints / "profile").iterdir()
    assert file.name == "steps-2-3-rank-0.trace.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    assert any(str(file) in line for line in story[0][0])


def leave_alone(world: World) -> None:
    """Rank 0 waits in a collective of a mesh that rank 1 does not come to."""
    mesh = init_device_mesh("cpu", (world.size,))
    world.limit_collectives(1)
    assert world.control._get_backend(world.device).options._timeout.total_seconds() > 3600
    if world.is_first:
        dist.all_reduce(torch.ones(1), group=mesh.get_group())


def test_the_limit_of_collectives_holds_for_every_mesh(gang: Gang) -> None:
    """Last: the group is of no use afterwards."""
    first, second = gang.run(2, leave_alone)
    assert isinstance(first, Raised), "rank 0 must not be waiting still"
    assert reason_of(first.error) is Reason.COLLECTIVE_TIMEOUT
    assert second is None
