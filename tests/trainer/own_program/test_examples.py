"""The examples of own programs, run as the operator would run them: two pods on this machine."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.own_program.pods import EXAMPLES, Pods

CPU_SHIM = Path(__file__).with_name("accelerate_on_cpu.py")
ON_CPU = {"gpusPerNode": 0}
type Run = Callable[..., Pods]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start the pods of an example; killed at the end if they still run."""
    started: list[Pods] = []

    def start(example: str, *args: str, shim: Path | None = None, **changes: Any) -> Pods:
        moved = {"/program": str(EXAMPLES), "/checkpoints": str(tmp_path / "checkpoints")}
        directory = tmp_path / f"run-{len(started)}"
        started.append(Pods(example, directory, list(args), moved, shim, **changes))
        return started[-1]

    yield start
    for pods in started:
        pods.stop()


def losses(log: str) -> list[float]:
    return [float(value) for value in re.findall(r"\bloss'?:? '?([\d.]+)", log)]


def test_torchrun_saves_when_one_pod_is_evicted_and_goes_on_to_the_end(run: Run) -> None:
    pods = run("torchrun.yaml", "--steps=1000000", "--log-every=1")
    pods.until("a step", lambda log: "step 3 loss" in log)
    pods.terminate(1)
    assert all(pods.wait()), pods.log()
    [step] = re.findall(r"checkpoint of step (\d+) is published", pods.log())
    first = losses(pods.log())[0]

    # On one pod: a checkpoint belongs to no world size.
    steps = int(step) + 200
    pods = run("torchrun.yaml", f"--steps={steps}", "--log-every=1", nodes=1)
    assert pods.wait() == [0], pods.log()
    assert f"rank 0 of 1 begins at step {int(step) + 1}" in pods.log()
    assert f"checkpoint of step {steps} is published" in pods.log()
    assert losses(pods.log())[-1] < 0.8 * first


@pytest.mark.soak
def test_a_program_that_cannot_do_what_the_job_says_ends(run: Run) -> None:
    pods = run("torchrun.yaml", nodes=1, dataParallelShardingStrategy="optim")
    assert pods.wait() != [0]
    assert "cannot do torch_fsdp2 optim: set useTorchFSDP2" in pods.log()


def test_hf_trainer_trains_what_it_has_sharded(run: Run) -> None:
    pods = run("hf-trainer.yaml", "--steps=20", "--save-every=20", shim=CPU_SHIM, **ON_CPU)
    assert pods.wait() == [0, 0], pods.log()
    told = losses(pods.log())
    assert len(told) == 4, pods.log()  # of steps 5, 10, 15 and 20
    assert told[-1] < 0.8 * told[0]


@pytest.mark.soak
def test_hf_trainer_saves_when_one_pod_is_evicted_and_goes_on(run: Run) -> None:
    pods = run("hf-trainer.yaml", "--steps=100000", shim=CPU_SHIM, **ON_CPU)
    pods.until("a step", lambda log: bool(losses(log)))
    pods.terminate(1)
    assert all(pods.wait()), pods.log()
    before = losses(pods.log())

    steps = 5 * len(before) + 20
    pods = run("hf-trainer.yaml", f"--steps={steps}", shim=CPU_SHIM, **ON_CPU)
    assert pods.wait() == [0, 0], pods.log()
    assert len(losses(pods.log())) in (3, 4), pods.log()  # not those of before
    assert losses(pods.log())[0] < 0.9 * before[0]


def test_hf_trainer_without_gpus_ends_and_does_not_train_ddp(run: Run) -> None:
    pods = run("hf-trainer.yaml", nodes=1, **ON_CPU)
    assert pods.wait() != [0]
    assert "the model is not sharded: accelerate's FSDP needs GPUs" in pods.log()
    assert losses(pods.log()) == []
