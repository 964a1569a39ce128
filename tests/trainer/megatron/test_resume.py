"""Checkpoints of Megatron FSDP: any world size, strategy and engine goes on from any other's."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import ODD, built, digest, megatron, on_cpu, run_on_cpu
from tests.trainer.runs import LENGTH, configuration
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from transformers import AutoModelForCausalLM

from mfsdp_trainer.config import ShardingStrategy, TrainerConfig
from mfsdp_trainer.errors import PreemptedError
from mfsdp_trainer.world import World

STOP = 3
OPTIM = ShardingStrategy.OPTIM
SAVED = [
    # engine, strategy, ranks, copies, precision
    pytest.param("megatron", "no_shard", 1, 1, "fp32", marks=pytest.mark.soak),
    ("megatron", "optim", 2, 1, "fp32"),
    ("megatron", "optim_grads_params", 4, 1, "bf16"),
    pytest.param("megatron", "optim_grads", 4, 2, "fp32", marks=pytest.mark.soak),
    ("fsdp2", "optim_grads_params", 2, 1, "fp32"),
]
LOADED = [
    ("megatron", "optim_grads_params", 1),
    ("megatron", "no_shard", 2),
    ("fsdp2", "optim_grads_params", 2),
    ("megatron", "optim_grads", 4),
]

Stopped = Callable[..., Path]


def config(engine: str, text: Path, path: Path, strategy: str, **choice: Any) -> TrainerConfig:
    checkpoint = {"path": str(path), "export": False, "everySteps": 1}
    choice = {"model": {"config": ODD}, "checkpoint": checkpoint, **choice}
    make = megatron if engine == "megatron" else configuration
    return make(text, path, strategy=strategy, **choice)


@pytest.fixture(scope="module")
def stopped(gang: Gang, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Checkpoints of a run that was asked to stop after step 3."""
    known: dict[tuple[Any, ...], Path] = {}

    def run(engine: str, strategy: str, ranks: int, replicas: int, precision: str) -> Path:
        key = (engine, strategy, ranks, replicas, precision)
        if key not in known:
            path = tmp_path_factory.mktemp("stopped") / "checkpoints"
            choice: dict[str, Any] = {"replicas": replicas} if engine == "megatron" else {}
            training = {"precision": precision}
            chosen = config(
                engine, text_file, path, strategy, ranks=ranks, training=training, **choice
            )
            for result in gang.results(ranks, run_on_cpu, chosen, STOP):
                assert isinstance(result.error, PreemptedError), result.error
            known[key] = path
        return known[key]

    return run


def loaded(world: World, config: TrainerConfig) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer after a resume."""
    loop = built(world, config)
    position = loop.checkpoints.resume(loop.engine)
    assert position is not None
    assert position.step == STOP
    return digest(loop)


@pytest.mark.parametrize(("engine", "strategy", "ranks", "replicas", "precision"), SAVED)
def test_what_is_loaded_is_the_same_everywhere(
    gang: Gang,
    stopped: Stopped,
    text_file: Path,
    engine: str,
    strategy: str,
    ranks: int,
    replicas: int,
    precision: str,
) -> None:
    path = stopped(engine, strategy, ranks, replicas, precision)
    found = [
        gang.results(
            loading, on_cpu, loaded, config(other, text_file, path, wanted, ranks=loading)
        )[0]
        for other, wanted, loading in LOADED
    ]
    assert found[0]["lm_head.weight/step"] == STOP
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, tensor in other.items():
            assert torch.equal(tensor, found[0][name]), name


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("optim_grads", 1), ("optim", 2), ("optim_grads_params", 4)]
)
def test_goes_on_as_if_nothing_had_happened(
    gang: Gang, stopped: Stopped, text_file: Path, tmp_path: Path, strategy: str, ranks: int
) -> None:
    undisturbed = gang.results(
        2, run_on_cpu, config("megatron", text_file, tmp_path / "a", "optim", ranks=2)
    )[0]
    assert undisturbed.error is None
    shutil.copytree(stopped("megatron", "optim", 2, 1, "fp32"), tmp_path / "b")
    chosen = config("megatron", text_file, tmp_path / "b", strategy, ranks=ranks)
    resumed = gang.results(ranks, run_on_cpu, chosen)[0]
    assert resumed.error is None
    assert resumed.resumed_from == STOP
    for got, wanted in zip(resumed.steps, undisturbed.steps[STOP:], strict=True):
        assert got == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("optim_grads_params", 2),
        pytest.param("optim_grads_params", 4, marks=pytest.mark.soak),
        pytest.param("no_shard", 2, marks=pytest.mark.soak),
    ],
)
def test_is_bit_identical_on_the_same_ranks_in_bf16_too(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str, ranks: int
) -> None:
    """The masters are what is saved: weights rounded to bf16 would go on elsewhere."""
    choice: dict[str, Any] = {"ranks": ranks, "training": {"precision": "bf16"}}
    halves = config("megatron", text_file, tmp_path / "b", strategy, **choice)
    undisturbed = gang.results(
        ranks, run_on_cpu, config("megatron", text_file, tmp_path / "a", strategy, **choice)
    )[0]
    gang.results(ranks, run_on_cpu, halves, STOP)
    resumed = gang.results(ranks, run_on_cpu, halves)[0]
    assert resumed.resumed_from == STOP
    assert resumed.steps == undisturbed.steps[STOP:]


def saved_in_the_background(world: World, config: TrainerConfig, target: Path) -> bool:
    """Whether a copy that is saved later is what was saved at once, on another strategy."""
    loop = built(world, config)
    loop.checkpoints.resume(loop.engine)
    wanted = digest(loop)
    stager = DefaultStager(StagingOptions(False, False, False, False))
    with warnings.catch_warnings(action="ignore"):
        saving = dcp.async_save(
            loop.engine.state(),
            storage_writer=dcp.FileSystemWriter(target),
            process_group=world.storage,
            async_stager=stager,
        )
        saving.result()
        other = built(world, config.model_copy(update={"data_parallel_sharding_strategy": OPTIM}))
        dcp.load(other.engine.state(), storage_reader=dcp.FileSystemReader(target))
    found = digest(other)
    return all(torch.equal(tensor, found[name]) for name, tensor in wanted.items())


def test_a_copy_for_a_save_in_the_background_knows_its_rows(
    gang: Gang, stopped: Stopped, text_file: Path, tmp_path: Path
) -> None:
    path = stopped("megatron", "optim", 2, 1, "fp32")
    chosen = config("megatron", text_file, path, "optim_grads_params", ranks=2)
    answers = gang.results(2, on_cpu, saved_in_the_background, chosen, tmp_path / "later")
    assert answers == [True, True]


def logits(world: World, config: TrainerConfig, spoke_before: bool) -> torch.Tensor:
    """What the loaded model says; maybe it spoke before it was loaded too."""
    loop = built(world, config)
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    if spoke_before:
        with loop.engine.evaluation():
            loop.engine.logits(tokens)
    loop.checkpoints.resume(loop.engine)
    with loop.engine.evaluation():
        return loop.engine.logits(tokens).clone()


@pytest.mark.parametrize(
    ("strategy", "precision"), [("optim", "fp32"), ("optim_grads_params", "bf16")]
)
def test_what_computes_follows_what_is_loaded(
    gang: Gang, stopped: Stopped, text_file: Path, strategy: str, precision: str
) -> None:
    path = stopped("megatron", "optim", 2, 1, "fp32")
    training = {"precision": precision}
    chosen = config("megatron", text_file, path, strategy, ranks=2, training=training)
    fsdp2 = config("fsdp2", text_file, path, "optim_grads_params", ranks=2, training=training)
    (wanted, _) = gang.results(2, on_cpu, logits, fsdp2, False)
    for spoke_before in (False, True):
        (got, _) = gang.results(2, on_cpu, logits, chosen, spoke_before)
        assert torch.allclose(got, wanted, atol=1e-6 if precision == "fp32" else 1e-2)


def test_exports_what_transformers_opens(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    """The export of 4 ranks with uneven shards is the one of FSDP2, and says the same."""
    exports = []
    for engine in ("megatron", "fsdp2"):
        path = tmp_path / engine
        checkpoint = {"path": str(path), "export": True}
        chosen = config(
            engine, text_file, path, "optim_grads_params", ranks=4, checkpoint=checkpoint
        )
        assert [r.error for r in gang.results(4, run_on_cpu, chosen)] == [None] * 4
        exports.append(AutoModelForCausalLM.from_pretrained(path / "export"))
    ours, theirs = (model.state_dict() for model in exports)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=1e-4), name
