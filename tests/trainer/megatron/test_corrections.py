"""What Megatron FSDP does wrong by default, each with a test that fails without the correction.

The numbers of whole runs are in test_equality.py; these look at single causes.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang, Raised
from tests.trainer.megatron.runs import (
    GEMMA,
    MIXTURE,
    ODD,
    built,
    digest,
    megatron,
    on_cpu,
    run_on_cpu,
)
from tests.trainer.runs import LENGTH, Recorder, Result, configuration, run_training
from torch import nn

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.model import ModelConfig
from mfsdp_trainer.data.vocabulary import Vocabulary
from mfsdp_trainer.engines.base import Engine
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models.architecture import build_meta, decoder_layers, read_config
from mfsdp_trainer.models.initialise import Recipes
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

START = Position(step=0, consumed=0)
SIX_LAYERS = {**ODD, "num_hidden_layers": 6}


def transformer(engine: Engine) -> Any:
    """The transformers model in an engine."""
    return engine._model  # type: ignore[attr-defined]


def forward(engine: Engine) -> torch.Tensor:
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    return engine.logits(tokens).detach().clone()


def start_of(world: World, config: TrainerConfig) -> dict[str, torch.Tensor]:
    loop = built(world, config)
    exported = {f"export/{name}": tensor for name, tensor in loop.engine.full_parameters()}
    return digest(loop) | exported


@pytest.mark.parametrize(
    ("settings", "strategy", "ranks", "precision"),
    [
        (ODD, "optim_grads_params", 1, "bf16"),
        (ODD, "no_shard", 2, "bf16"),
        (GEMMA, "optim", 2, "fp32"),
        (MIXTURE, "optim_grads_params", 2, "bf16"),
        (ODD, "optim_grads", 4, "fp32"),
        (ODD, "optim_grads_params", 4, "bf16"),
    ],
)
def test_masters_start_as_seed_and_name_say_and_no_step_is_taken(
    gang: Gang,
    text_file: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    strategy: str,
    ranks: int,
    precision: str,
) -> None:
    """To the bit: not rounded to bf16, not decayed by a step that only makes optimizer state."""
    config = megatron(
        text_file,
        tmp_path,
        strategy,
        ranks=ranks,
        model={"config": settings},
        training={"precision": precision},
    )
    vocabulary = Vocabulary(size=260, end=256, digest="")
    meta = build_meta(read_config(ModelConfig(config=settings), vocabulary))
    recipes = Recipes(meta, config.training.seed)
    names = {name for name, _ in meta.named_parameters()}
    for found in gang.results(ranks, on_cpu, start_of, config):
        assert {name for name in found if f"{name}/step" in found} == names
        for name in names:
            wanted = recipes.make(name)
            assert found[name].dtype is torch.float32
            assert torch.equal(found[name], wanted), name
            assert torch.equal(found[f"export/{name}"], wanted), name
            assert found[f"{name}/step"] == 0
            assert not found[f"{name}/exp_avg"].any()


def losses_of(world: World, config: TrainerConfig, evaluate: bool) -> list[dict[str, Any]]:
    """What each step of a run tells, after an evaluation or at once.

    `train` would not do for the latter: it looks at packed documents before the first step.
    """
    recorder = Recorder(world.rank)
    loop, _ = build(config, world, recorder)
    if evaluate:
        with loop.engine.evaluation():
            forward(loop.engine)
    loop.run(START)
    return [told for told in recorder.told if "loss" in told]


@pytest.mark.parametrize("strategy", ["optim", "optim_grads_params"])
def test_an_evaluation_before_the_first_step_leaves_training_on(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    runs = []
    for evaluate in (False, True):
        config = megatron(
            text_file,
            tmp_path / str(evaluate),
            strategy,
            ranks=2,
            micro_batches=3,
            # Dropout: without it numbers are the same where training is off.
            model={"config": {**ODD, "attention_dropout": 0.1}},
        )
        told = gang.results(2, on_cpu, losses_of, config, evaluate)[0]
        runs.append([(step["step"], step["loss"], step["grad_norm"]) for step in told])
    assert len(runs[0]) == 6
    assert runs[1] == runs[0]


def steps_counted(world: World, config: TrainerConfig) -> tuple[list[float], int]:
    loop = built(world, config)
    loop.run(START)
    slots = loop.engine.state()["optimizer"].values()
    empty = sum(slot["exp_avg"].to_local().numel() == 0 for slot in slots)
    return [float(slot["step"]) for slot in slots], empty


def test_ranks_without_rows_of_a_parameter_count_its_steps_too(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    """A checkpoint takes the count from any rank: bias correction would start over with 0."""
    config = megatron(text_file, tmp_path, "optim_grads_params", ranks=4, training={"steps": 2})
    answers = gang.results(4, on_cpu, steps_counted, config)
    assert all(empty > 0 for _, empty in answers)
    assert {count for counts, _ in answers for count in counts} == {2}


def formats(world: World, config: TrainerConfig) -> tuple[set[Any], dict[str, torch.Tensor]]:
    model = transformer(built(world, config).engine)
    with torch.no_grad():
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return {parameter.orig_param.dtype for parameter in model.parameters()}, buffers


@pytest.mark.parametrize("settings", [ODD, GEMMA], ids=["llama", "gemma3"])
def test_bf16_casts_parameters_and_never_buffers(
    gang: Gang, text_file: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = megatron(
        text_file,
        tmp_path,
        "optim_grads_params",
        ranks=2,
        model={"config": settings},
        training={"precision": "bf16"},
    )
    vocabulary = Vocabulary(size=260, end=256, digest="")
    meta = build_meta(read_config(ModelConfig(config=settings), vocabulary))
    recipes = Recipes(meta, seed=0)
    for dtypes, buffers in gang.results(2, on_cpu, formats, config):
        assert dtypes == {torch.bfloat16}
        assert buffers.keys() == {name for name, _ in meta.named_buffers()}
        for name, buffer in buffers.items():
            assert torch.equal(buffer, recipes.make(name)), name


def ties(world: World, config: TrainerConfig) -> list[tuple[bool, int]]:
    """Whether head and embedding are one, and how many parameters there are, over a run."""
    loop = built(world, config)
    model = transformer(loop.engine)

    def look() -> tuple[bool, int]:
        one = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        return one, len(list(model.parameters()))

    found = [look()]
    with loop.engine.evaluation():
        forward(loop.engine)
        found.append(look())
    loop.run(START)
    return [*found, look()]


@pytest.mark.parametrize("strategy", ["no_shard", "optim_grads_params"])
def test_tied_weights_stay_one(gang: Gang, text_file: Path, tmp_path: Path, strategy: str) -> None:
    tied = {**ODD, "tie_word_embeddings": True}
    config = megatron(text_file, tmp_path, strategy, ranks=2, model={"config": tied})
    for found in gang.results(2, on_cpu, ties, config):
        assert set(found) == {(True, 3 * 9 + 2)}


def gathered_layers(world: World, config: TrainerConfig) -> tuple[int, int, int]:
    """Most decoder layers that are whole in a forward, in a backward pass, and after them."""
    loop = built(world, config)
    model = transformer(loop.engine)
    layers = list(decoder_layers(model))
    seen = {"forward": 0, "backward": 0}

    def whole_now() -> int:
        return sum(
            any(_raw(parameter).untyped_storage().nbytes() for parameter in layer.parameters())
            for layer in layers
        )

    def watch(kind: str) -> Any:
        def hook(*_: Any) -> None:
            seen[kind] = max(seen[kind], whole_now())

        return hook

    for layer in layers:
        layer.self_attn.register_forward_hook(watch("forward"))
        layer.self_attn.register_full_backward_hook(watch("backward"))
    loop.run(START)
    return seen["forward"], seen["backward"], whole_now()


def _raw(parameter: Any) -> torch.Tensor:
    """What computes, behind what the optimizer sees."""
    raw: torch.Tensor = getattr(parameter, "orig_param", parameter)
    return raw


def test_a_small_model_is_not_gathered_whole(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    """A communication unit is a layer, and not the thousand million elements of the default."""
    config = megatron(
        text_file, tmp_path, "optim_grads_params", ranks=2, model={"config": SIX_LAYERS}
    )
    for in_forward, in_backward, after in gang.results(2, on_cpu, gathered_layers, config):
        assert 1 <= in_forward <= 2
        assert 1 <= in_backward <= 2
        assert after == 0


def build_without_layers(world: World, config: TrainerConfig) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfsdp_trainer.run.build_meta", _without_list)
        built(world, config)


def _without_list(config: Any, attention: Any) -> Any:
    model = build_meta(config, attention)
    model.model.layers = nn.Sequential(*model.model.layers)
    return model


def test_a_model_without_layers_is_refused_with_the_way_out(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    config = megatron(text_file, tmp_path, "optim_grads_params", ranks=2)
    for answer in gang.run(2, on_cpu, build_without_layers, config):
        assert isinstance(answer, Raised)
        assert isinstance(answer.error, ConfigError)
        assert str(answer.error) == (
            "model: LlamaForCausalLM has no list of layers to shard by: set "
            "dataParallelShardingStrategy to optim_grads, which keeps parameters whole"
        )
    config = megatron(text_file, tmp_path, "optim_grads", ranks=2)
    gang.results(2, on_cpu, build_without_layers, config)


def _with_unused_norms(config: Any, attention: Any) -> Any:
    model = build_meta(config, attention)
    for layer in decoder_layers(model):
        layer.unused = copy.deepcopy(layer.input_layernorm)
    # The last module too: the package also takes its output for the model's.
    model.unused = copy.deepcopy(layer.unused)
    return model


def run_with_unused(world: World, config: TrainerConfig) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfsdp_trainer.run.build_meta", _with_unused_norms)
        return run_training(world, config)


@pytest.mark.parametrize("strategy", ["optim", "optim_grads_params"])
def test_a_parameter_without_gradient_does_not_keep_others_from_being_reduced(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    config = megatron(text_file, tmp_path / "a", strategy, ranks=2, micro_batches=3)
    wanted = gang.results(2, run_on_cpu, config)[0]
    config = megatron(text_file, tmp_path / "b", strategy, ranks=2, micro_batches=3)
    found = gang.results(2, on_cpu, run_with_unused, config)[0]
    assert found.error is None
    for got, other in zip(found.steps, wanted.steps, strict=True):
        assert got == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("strategy", ["no_shard", "optim", "optim_grads", "optim_grads_params"])
def test_bf16_gradients_are_added_up_and_reduced_in_fp32(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    """As under FSDP2, whose policy says so: three micro-batches of two ranks, to six digits."""
    choice: dict[str, Any] = {
        "ranks": 2,
        "micro_batches": 3,
        "training": {"precision": "bf16", "steps": 1, "warmupSteps": 1},
    }
    fsdp2 = configuration(text_file, tmp_path / "a", strategy=strategy, **choice)
    wanted = gang.results(2, run_training, fsdp2)[0]
    config = megatron(text_file, tmp_path / "b", strategy, **choice)
    found = gang.results(2, run_on_cpu, config)[0]
    assert found.steps[0] == pytest.approx(wanted.steps[0], rel=1e-6)
