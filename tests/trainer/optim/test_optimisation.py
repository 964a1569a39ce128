"""SGD, frozen parameters and growing batches: the numbers of one unsharded process, everywhere."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import built, digest, on_cpu, run_on_cpu
from tests.trainer.optim.choices import configured, saved_model
from tests.trainer.reference import Reference, train_reference
from tests.trainer.runs import BATCH, TINY, Recorder
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import ConfigError, PreemptedError
from mfsdp_trainer.run import train
from mfsdp_trainer.world import World

STOP = 3
RAMP = {"batchRamp": {"start": 4, "increment": 4, "sequences": 20}}
SIZES = (4, 4, 4, 8, 12, 12)


def freezing(*patterns: str) -> Callable[[PreTrainedModel], None]:
    """Freeze as `training.freeze` says, in a model of plain torch."""

    def prepare(model: PreTrainedModel) -> None:
        for name, parameter in model.named_parameters():
            if any(re.search(pattern, name) for pattern in patterns):
                parameter.requires_grad_(False)

    return prepare


@dataclass(frozen=True)
class Way:
    """One way to train, and the same in plain torch."""

    training: dict[str, Any]
    tied: bool = False
    reference: dict[str, Any] = field(default_factory=dict)


WAYS = {
    "sgd": Way(
        {"optimizer": "sgd", "learningRate": 1e-2},
        reference={"optimizer": partial(torch.optim.SGD, momentum=0.9)},
    ),
    "sgd without momentum": Way(
        {"optimizer": "sgd", "momentum": 0}, reference={"optimizer": torch.optim.SGD}
    ),
    "freeze": Way(
        {"freeze": ["embed_tokens", r"layers[.]1[.].*proj", r"layers[.]2[.]"]},
        reference={"prepare": freezing("embed_tokens", r"layers[.]1[.].*proj", r"layers[.]2[.]")},
    ),
    # By the name that the tied weight does not have in named_parameters().
    "freeze tied": Way(
        {"freeze": ["lm_head"]}, tied=True, reference={"prepare": freezing("embed_tokens")}
    ),
    "freeze all but one": Way(
        {"freeze": ["^(?!model[.]norm)"]},
        reference={"prepare": freezing("^(?!model[.]norm)")},
    ),
    "ramp": Way(RAMP, reference={"sizes": SIZES}),
}
CASES = [
    ("sgd", "ddp", 2, 1),
    ("sgd", "fsdp2/optim_grads_params", 2, 3),
    ("sgd", "megatron/optim", 2, 3),
    ("sgd without momentum", "megatron/optim_grads_params", 2, 1),
    ("freeze", "ddp", 2, 3),
    ("freeze", "fsdp2/optim", 2, 3),
    ("freeze", "fsdp2/optim_grads_params", 2, 1),
    ("freeze", "megatron/optim_grads_params", 2, 3),
    ("freeze", "megatron/optim", 2, 1),
    ("freeze tied", "fsdp2/optim_grads_params", 2, 3),
    ("freeze tied", "megatron/optim_grads_params", 2, 3),
    ("freeze all but one", "megatron/optim_grads", 2, 1),
    ("ramp", "fsdp2/optim", 2, 6),
    ("ramp", "megatron/optim", 2, 3),
    ("sgd", "megatron/optim_grads_params", 4, 1),
    ("freeze", "megatron/optim_grads_params", 4, 1),
    ("ramp", "ddp", 4, 3),
]

Start = Callable[[str], tuple[Path, Reference]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Start:
    """A directory with weights, and how an unsharded process trains them."""
    models = {
        tied: saved_model(tmp_path_factory.mktemp("start"), tied=tied) for tied in (False, True)
    }
    known: dict[str, Reference] = {}

    def make(way: str) -> tuple[Path, Reference]:
        directory = models[WAYS[way].tied]
        if way not in known:
            known[way] = train_reference(directory, text_file, **WAYS[way].reference)
        return directory, known[way]

    return make


@pytest.mark.parametrize(("way", "engine", "ranks", "micro_batches"), CASES)
def test_equals_one_unsharded_process(
    gang: Gang,
    start: Start,
    text_file: Path,
    tmp_path: Path,
    way: str,
    engine: str,
    ranks: int,
    micro_batches: int,
) -> None:
    directory, reference = start(way)
    config = configured(
        engine,
        text_file,
        tmp_path,
        ranks=ranks,
        micro_batches=micro_batches,
        model={"path": str(directory)},
        training=WAYS[way].training,
    )
    results = gang.results(ranks, run_on_cpu, config)
    assert [result.error for result in results] == [None] * ranks
    _, losses, norms = zip(*results[0].steps, strict=True)
    assert losses == pytest.approx(reference.losses, abs=1e-5)
    assert norms == pytest.approx(reference.norms, abs=1e-4)


def held(world: World, config: TrainerConfig) -> dict[str, tuple[torch.dtype, bool]]:
    """Number format of each parameter as it is held, and whether it has optimizer state."""
    state = built(world, config).engine.state()
    trained = state["optimizer"]
    return {
        name: (tensor.dtype, name in trained)
        for name, tensor in state["model"].items()
        if isinstance(tensor, torch.nn.Parameter | DTensor)
    }


@pytest.mark.parametrize("engine", ["ddp", "fsdp2/optim_grads_params", "megatron/optim"])
def test_what_is_frozen_has_neither_masters_nor_optimizer_state(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str
) -> None:
    training = {"freeze": ["layers[.]0[.]"], "precision": "bf16"}
    config = configured(engine, text_file, tmp_path, ranks=2, training=training)
    for found in gang.results(2, on_cpu, held, config):
        assert len(found) == 30
        for name, facts in found.items():
            frozen = "layers.0." in name
            assert facts == ((torch.bfloat16, False) if frozen else (torch.float32, True)), name


@pytest.mark.parametrize("engine", ["ddp", "fsdp2/optim_grads_params", "megatron/optim"])
def test_bf16_with_frozen_layers_stays_near(
    gang: Gang, start: Start, text_file: Path, tmp_path: Path, engine: str
) -> None:
    directory, reference = start("freeze")
    config = configured(
        engine,
        text_file,
        tmp_path,
        ranks=2,
        model={"path": str(directory)},
        training={**WAYS["freeze"].training, "precision": "bf16"},
    )
    result = gang.results(2, run_on_cpu, config)[0]
    assert result.error is None
    assert [loss for _, loss, _ in result.steps] == pytest.approx(reference.losses, abs=2e-2)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["embed_tokens", "layers[.]7"], r"training.freeze[1]: 'layers[.]7' meets no parameter"),
        (["model", "lm_head"], "training.freeze: 'model', 'lm_head' leave nothing to train"),
    ],
)
def test_patterns_that_meet_nothing_or_all_are_refused(
    gang: Gang, text_file: Path, tmp_path: Path, patterns: list[str], message: str
) -> None:
    config = configured("ddp", text_file, tmp_path, ranks=2, training={"freeze": patterns})
    for result in gang.results(2, run_on_cpu, config):
        assert isinstance(result.error, ConfigError)
        assert message in str(result.error)


@pytest.fixture(scope="module")
def stopped(gang: Gang, text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a run by SGD with frozen layers and a growing batch, stopped after step 3."""
    path = tmp_path_factory.mktemp("stopped")
    for result in gang.results(2, run_on_cpu, everything("megatron/optim", text_file, path), STOP):
        assert isinstance(result.error, PreemptedError), result.error
    return path


def everything(engine: str, text: Path, path: Path, **choice: Any) -> TrainerConfig:
    training = {"optimizer": "sgd", "freeze": ["layers[.]1[.]"], **RAMP}
    choice = {"ranks": 2, "micro_batches": 3, **choice}
    training |= choice.pop("training", {})
    checkpoint = {"path": str(path), "export": False, "everySteps": 1}
    return configured(engine, text, path, training=training, checkpoint=checkpoint, **choice)


@pytest.mark.parametrize(
    ("engine", "ranks"),
    [("fsdp2/optim_grads_params", 2), ("megatron/optim", 2), ("ddp", 1), ("megatron/optim", 4)],
)
def test_goes_on_as_if_nothing_had_happened(
    gang: Gang, stopped: Path, text_file: Path, tmp_path: Path, engine: str, ranks: int
) -> None:
    undisturbed = gang.results(2, run_on_cpu, everything("fsdp2/optim", text_file, tmp_path))[0]
    config = everything(engine, text_file, stopped, ranks=ranks)
    resumed = gang.results(ranks, resumed_steps, config)[0]
    assert [step for step, _, _ in resumed] == [4, 5, 6]
    for got, wanted in zip(resumed, undisturbed.steps[STOP:], strict=True):
        assert got == pytest.approx(wanted, abs=1e-5)


def resumed_steps(world: World, config: TrainerConfig) -> list[tuple[int, float, float]]:
    """Steps after a resume, without a checkpoint of them."""

    def steps(world: World, config: TrainerConfig) -> list[tuple[int, float, float]]:
        loop = built(world, config)
        position = loop.checkpoints.resume(loop.engine)
        assert position is not None
        while position.step < config.training.total_steps:
            position, _ = loop.advance(position)
        return [
            (told["step"], told["loss"], told["grad_norm"])
            for told in loop.reporter.told  # type: ignore[attr-defined]
            if "loss" in told
        ]

    found: list[tuple[int, float, float]] = on_cpu(world, steps, config)
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adamw"}, "was trained by sgd with momentum, this run has adamw"),
        ({"momentum": 0}, "this run has sgd without momentum: go on with the same optimizer and"),
        ({"freeze": []}, "training.freeze: "),
    ],
)
def test_another_optimizer_or_other_frozen_parameters_are_refused(
    gang: Gang, stopped: Path, text_file: Path, change: dict[str, Any], message: str
) -> None:
    config = everything("megatron/optim", text_file, stopped, training=change)
    for result in gang.results(2, run_on_cpu, config):
        assert isinstance(result.error, ConfigError), result.error
        assert message in str(result.error)


def test_without_momentum_there_is_no_state_and_a_run_goes_on(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    def config(path: str) -> TrainerConfig:
        return everything("fsdp2/optim_grads", text_file, tmp_path / path, training={"momentum": 0})

    undisturbed = gang.results(2, run_on_cpu, config("a"))[0]
    gang.results(2, run_on_cpu, config("b"), STOP)
    resumed = gang.results(2, run_on_cpu, config("b"))[0]
    assert resumed.resumed_from == STOP
    assert resumed.steps == undisturbed.steps[STOP:]
    assert not any("/" in name for name in gang.results(2, on_cpu, loaded, config("b"))[0])


def loaded(world: World, config: TrainerConfig) -> dict[str, torch.Tensor]:
    loop = built(world, config)
    loop.checkpoints.resume(loop.engine)
    return digest(loop)


@pytest.mark.parametrize("engine", ["ddp", "fsdp2/optim_grads_params", "megatron/optim"])
def test_two_runs_are_equal_to_the_bit(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str
) -> None:
    """Losses, norms and what is exported, with dropout: random numbers follow from the seed."""
    runs = []
    for number, seed in enumerate((5, 5, 6)):
        path = tmp_path / str(number)
        config = configured(
            engine,
            text_file,
            path,
            ranks=2,
            micro_batches=3,
            model={"config": {**TINY, "attention_dropout": 0.2}},
            training={"seed": seed, "steps": 3},
            checkpoint={"path": str(path), "export": True},
        )
        result = gang.results(2, run_on_cpu, config)[0]
        assert result.error is None
        runs.append((result.steps, load_file(path / "export" / "model.safetensors")))
    (steps, weights), (same_steps, same_weights), (other_steps, _) = runs
    assert steps == same_steps != other_steps
    assert weights.keys() == same_weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, same_weights[name]), name


def test_epochs_end_when_each_sequence_was_seen(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    """The steps are told from the start, and the schedule ends with them."""
    sequences = text_file.stat().st_size // 32
    epochs = 3 * BATCH / sequences - 1e-6
    training = {"steps": None, "epochs": epochs, "batchRamp": None, "warmupSteps": 0}
    config = configured("ddp", text_file, tmp_path, ranks=2, training=training)
    loop = gang.results(2, told_by, config)[0]
    assert [told["total_steps"] for told in loop if "total_steps" in told] == [3]
    assert [told["step"] for told in loop if "loss" in told] == [1, 2, 3]
    assert [told["learning_rate"] for told in loop if "loss" in told][-1] == pytest.approx(1e-3)
    assert [told["eta_seconds"] for told in loop if "loss" in told][-1] == 0


def told_by(world: World, config: TrainerConfig) -> list[dict[str, Any]]:

    recorder = Recorder(world.rank)
    train(config, world, recorder)
    return recorder.told
