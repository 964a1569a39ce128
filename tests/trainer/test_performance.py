"""Options that save time or memory, and other models' heads, leave every number as it was."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang, Raised
from tests.trainer.megatron.runs import GPT2, ODD, megatron, on_cpu, run_on_cpu, whole
from tests.trainer.reference import train_reference
from tests.trainer.runs import SLACK, TINY, Recorder, configuration, run_training
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.engines import fsdp2
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models.architecture import decoder_layers
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

HEADS: dict[str, dict[str, Any]] = {
    "capped": {
        **TINY,
        "model_type": "gemma2",
        "head_dim": 8,
        "final_logit_softcapping": 0.5,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu",
    },
    "biased": {**TINY, "model_type": "phi"},
}
DROPOUT = {**GPT2, **{f"{place}_pdrop": 0.2 for place in ("attn", "embd", "resid")}}
SHARDED = "optim_grads_params"
RATE = 1e-4
"""Half of what bf16 can tell from 1.0 is 0.0039: a step of this is lost in it."""


def steps(
    gang: Gang, text: Path, path: Path, engine: str, strategy: str = SHARDED, **choice: Any
) -> list[tuple[int, float, float]]:
    """Losses and norms of a run of two ranks."""
    choice = {"ranks": 2, "micro_batches": 3, **choice}
    if engine == "megatron":
        run, config = run_on_cpu, megatron(text, path, strategy, **choice)
    else:
        run, config = run_training, configuration(text, path, strategy=strategy, **choice)
    result = gang.results(2, run, config)[0]
    shutil.rmtree(path, ignore_errors=True)
    assert result.error is None
    assert len(result.steps) == 6
    return result.steps  # type: ignore[no-any-return]


def assert_equal(found: list[tuple[int, float, float]], wanted: Any) -> None:
    for got, other in zip(found, wanted, strict=True):
        assert got == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        ("ddp", "ddp"),
        ("fsdp2", SHARDED),
        ("megatron", SHARDED),
        ("megatron", "optim"),
        pytest.param("fsdp2", "optim", marks=pytest.mark.soak),
        pytest.param("megatron", "no_shard", marks=pytest.mark.soak),
        pytest.param("megatron", "optim_grads", marks=pytest.mark.soak),
    ],
)
def test_recompute_changes_no_number_with_dropout_too(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str, strategy: str
) -> None:
    def run(how: str) -> list[tuple[int, float, float]]:
        training = {"recompute": how}
        model = {"config": DROPOUT}
        path = tmp_path / how
        return steps(gang, text_file, path, engine, strategy, training=training, model=model)

    wanted = run("none")
    assert_equal(run("full"), wanted)
    assert_equal(run("selective"), wanted)


def test_attention_is_a_choice(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    wanted = steps(gang, text_file, tmp_path / "a", "fsdp2")
    found = steps(gang, text_file, tmp_path / "b", "fsdp2", performance={"attention": "eager"})
    for got, other in zip(found, wanted, strict=True):
        assert got == pytest.approx(other, abs=1e-5)
    assert found != wanted, "eager rounds otherwise: it was not used"


def build_only(world: World, config: TrainerConfig) -> None:
    build(config, world, Recorder(world.rank))


def order(world: World, config: TrainerConfig) -> list[str]:
    """When units are asked for and when layers compute, in the first micro-batch."""
    events: list[str] = []
    own = FSDPParamGroup.unshard

    def unshard(group: FSDPParamGroup, *args: Any, **kwargs: Any) -> Any:
        if not group.is_unsharded and group._all_gather_result is None:
            events.append(f"gather {group._module_fqn}")
        return own(group, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FSDPParamGroup, "unshard", unshard)
        loop, _ = build(config, world, Recorder(world.rank))
        engine: Any = loop.engine
        for number, layer in enumerate(decoder_layers(engine._model)):
            layer.register_forward_pre_hook(lambda *_, n=number: events.append(f"forward {n}"))
        loop.advance(Position(step=0, consumed=0))
    return events


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_prefetch_gathers_so_many_units_ahead(
    gang: Gang, text_file: Path, tmp_path: Path, ahead: int
) -> None:
    layers = {**TINY, "num_hidden_layers": 5}
    config = configuration(
        text_file,
        tmp_path,
        strategy=SHARDED,
        ranks=2,
        model={"config": layers},
        performance={"prefetchLayers": ahead},
    )
    for events in gang.results(2, order, config):
        forward = events[: events.index("forward 4") + 1]
        for layer in range(5 - ahead):
            reached = forward[: forward.index(f"forward {layer}")]
            gathered = [event for event in reached if event.startswith("gather model.layers")]
            assert len(gathered) == layer + 1 + ahead


def test_prefetch_changes_no_number(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    wanted = steps(gang, text_file, tmp_path / "a", "fsdp2")
    found = steps(gang, text_file, tmp_path / "b", "fsdp2", performance={"prefetchLayers": 2})
    assert found == wanted


def test_units_are_in_the_order_of_the_forward_pass() -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY))
    units = fsdp2._units(model)
    assert units[0] is model.get_input_embeddings()
    assert units[-1] is model.get_output_embeddings()
    assert all(isinstance(unit, nn.Module) for unit in units)
    assert not any(isinstance(unit, FSDPModule) for unit in units)


@pytest.mark.parametrize(
    ("performance", "replicas"),
    [
        ({"doubleBuffer": True}, 1),
        ({"separateGatherGroup": True}, 2),
        pytest.param({"doubleBuffer": True}, 2, marks=pytest.mark.soak),
        pytest.param({"separateGatherGroup": True}, 1, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_options_of_megatron_fsdp_change_no_number(
    gang: Gang, text_file: Path, tmp_path: Path, performance: dict[str, Any], replicas: int
) -> None:
    model = {"config": {**ODD, "num_hidden_layers": 5}}

    def run(name: str, **choice: Any) -> Any:
        config = megatron(
            text_file,
            tmp_path / name,
            SHARDED,
            ranks=4,
            micro_batches=3,
            replicas=replicas,
            model=model,
        )
        chosen = config.performance.model_validate(choice, by_alias=True, by_name=False)
        config = config.model_copy(update={"performance": chosen})
        result = gang.results(4, run_on_cpu, config)[0]
        assert result.error is None
        return result.steps

    assert run("b", **performance) == run("a")


COMPILED = {("ddp", "none"), ("fsdp2", "full"), ("megatron", "selective")}


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
@pytest.mark.parametrize(
    ("engine", "how"),
    [
        pytest.param(*case, marks=[] if case in COMPILED else pytest.mark.soak)
        for case in product(("ddp", "fsdp2", "megatron"), ("none", "full", "selective"))
    ],
)
def test_compiled_layers_change_no_number(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str, how: str
) -> None:
    strategy = "ddp" if engine == "ddp" else SHARDED
    training = {"recompute": how}
    wanted = steps(gang, text_file, tmp_path / "a", engine, strategy, training=training)
    performance = {"compile": True}
    found = steps(
        gang,
        text_file,
        tmp_path / "b",
        engine,
        strategy,
        training=training,
        performance=performance,
    )
    for got, other in zip(found, wanted, strict=True):
        assert got == pytest.approx(other, abs=1e-5)
    assert found != wanted, "compiled code rounds otherwise: it was not used"


def test_compiling_without_a_compiler_is_refused(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    config = configuration(text_file, tmp_path, ranks=1, performance={"compile": True})
    (answer,) = gang.run(1, build_without_compiler, config)
    assert isinstance(answer, Raised)
    assert isinstance(answer.error, ConfigError)
    assert str(answer.error).startswith("performance.compile needs a C compiler")


def build_without_compiler(world: World, config: TrainerConfig) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.delenv("CC", raising=False)
        patch.delenv("CXX", raising=False)
        build_only(world, config)


@pytest.mark.parametrize("kind", ["capped", pytest.param("biased", marks=pytest.mark.soak)])
def test_heads_of_other_models_equal_one_unsharded_process(
    gang: Gang, text_file: Path, tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**HEADS[kind]))
    model.save_pretrained(tmp_path / "model")
    reference = train_reference(tmp_path / "model", text_file)
    choice: dict[str, Any] = {"ranks": 2, "model": {"path": str(tmp_path / "model")}}
    strategy = "optim_grads_params"
    runs = [
        (run_training, configuration(text_file, tmp_path / "a", strategy=strategy, **choice)),
        (run_on_cpu, megatron(text_file, tmp_path / "b", strategy, **choice)),
        (run_training, configuration(text_file, tmp_path / "c", **choice)),
    ]
    for run, config in runs:
        result = gang.results(2, run, config)[0]
        assert result.error is None
        _, losses, norms = zip(*result.steps, strict=True)
        assert losses == pytest.approx(reference.losses, abs=SLACK * 1e-5)
        assert norms == pytest.approx(reference.norms, abs=SLACK * 1e-4)


def trained(world: World, config: TrainerConfig) -> tuple[set[torch.dtype], torch.Tensor]:
    """Number formats of all that a checkpoint holds, and a norm's weight after two steps."""
    loop, _ = build(config, world, Recorder(world.rank))
    loop.run(Position(step=0, consumed=0))
    state = loop.engine.state()
    slots = [slot for entry in state["optimizer"].values() for slot in entry.values()]
    dtypes = {tensor.dtype for tensor in [*state["model"].values(), *slots]}
    return dtypes, whole(state["model"]["model.norm.weight"])


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "megatron"])
def test_masters_are_fp32_and_small_steps_count(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str
) -> None:
    make = megatron if engine == "megatron" else configuration
    strategy = "ddp" if engine == "ddp" else "optim_grads_params"
    training = {
        "precision": "bf16",
        "steps": 2,
        "learningRate": RATE,
        "minLearningRate": RATE,
        "warmupSteps": 0,
    }
    config = make(text_file, tmp_path, strategy=strategy, ranks=2, training=training)
    for dtypes, norm in gang.results(2, on_cpu, trained, config):
        assert dtypes == {torch.float32}
        assert float((norm - 1).abs().min()) > RATE / 20
