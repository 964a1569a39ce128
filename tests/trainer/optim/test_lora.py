"""LoRA: the numbers of an unsharded run by peft, in its formats, with adapters alone to save."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from safetensors.torch import load_file, save_file
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import GPT2, MIXTURE, built, digest, on_cpu, run_on_cpu
from tests.trainer.optim.choices import configured, saved_model
from tests.trainer.reference import Reference, train_reference
from tests.trainer.runs import Recorder
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import ConfigError, PreemptedError
from mfsdp_trainer.run import train
from mfsdp_trainer.world import World

STOP = 3
LORA = {"rank": 8, "alpha": 12}
TOKENS = torch.arange(48).reshape(2, 24) * 5 % 256
ENGINES = [
    ("ddp", 2, 3),
    ("fsdp2/optim_grads_params", 2, 1),
    ("fsdp2/optim", 2, 3),
    ("megatron/optim_grads_params", 2, 3),
    ("megatron/optim", 2, 1),
    ("megatron/no_shard", 1, 1),
    ("megatron/optim_grads_params", 4, 1),
]

Adapters = dict[str, torch.Tensor]


def lora(engine: str, text: Path, path: Path, start: Path, **choice: Any) -> TrainerConfig:
    model = {"path": str(start), "lora": {**LORA, **choice.pop("lora", {})}}
    checkpoint = {"path": str(path), "export": False, "everySteps": 1, **choice.pop("saves", {})}
    choice = {"ranks": 2, **choice}
    return configured(engine, text, path, model=model, checkpoint=checkpoint, **choice)


def adapters(world: World, config: TrainerConfig) -> Adapters:
    """What is trained, whole, before it was."""

    def gathered(world: World, config: TrainerConfig) -> Adapters:
        return dict(built(world, config).engine.full_parameters(trained_only=True))

    found: Adapters = on_cpu(world, gathered, config)
    return found


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("start"), tied=False)


@pytest.fixture(scope="module")
def begun(gang: Gang, start: Path, text_file: Path, tmp_path_factory: Any) -> Adapters:
    """The adapters that every run begins with."""
    path = tmp_path_factory.mktemp("begun")
    return gang.results(2, adapters, lora("ddp", text_file, path, start))[0]


@pytest.fixture(scope="module")
def reference(start: Path, text_file: Path, begun: Adapters) -> Reference:
    """The run by peft in plain torch."""

    def prepare(model: PreTrainedModel) -> None:
        targets = LoraConfig(r=8, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM")
        inject_adapter_in_model(targets, model)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        assert trained.keys() == begun.keys()
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(begun[name])

    return train_reference(start, text_file, prepare=prepare)


def test_adapters_begin_as_peft_s_do(begun: Adapters) -> None:
    assert len(begun) == 3 * 7 * 2
    assert len({float(tensor.flatten()[0]) for tensor in begun.values()}) == 3 * 7 + 1
    for name, tensor in begun.items():
        if "lora_B" in name:
            assert not tensor.any()
        else:
            bound = tensor.shape[1] ** -0.5
            assert float(tensor.abs().max()) <= bound
            assert float(tensor.std()) == pytest.approx(bound / 3**0.5, rel=0.2)


@pytest.mark.parametrize(("engine", "ranks", "micro_batches"), ENGINES)
def test_equals_an_unsharded_run_by_peft(
    gang: Gang,
    start: Path,
    begun: Adapters,
    reference: Reference,
    text_file: Path,
    tmp_path: Path,
    engine: str,
    ranks: int,
    micro_batches: int,
) -> None:
    config = lora(engine, text_file, tmp_path, start, ranks=ranks, micro_batches=micro_batches)
    for found in gang.results(ranks, adapters, config):
        for name, tensor in found.items():
            assert torch.equal(tensor, begun[name]), name
    results = gang.results(ranks, run_on_cpu, config)
    assert [result.error for result in results] == [None] * ranks
    _, losses, norms = zip(*results[0].steps, strict=True)
    assert losses == pytest.approx(reference.losses, abs=1e-5)
    assert norms == pytest.approx(reference.norms, abs=1e-4)


@pytest.mark.parametrize("engine", ["ddp", "fsdp2/optim_grads_params", "megatron/optim"])
def test_bf16_stays_near_and_adapters_alone_have_masters(
    gang: Gang, start: Path, reference: Reference, text_file: Path, tmp_path: Path, engine: str
) -> None:
    config = lora(engine, text_file, tmp_path, start, training={"precision": "bf16"})
    results = gang.results(2, run_on_cpu, config)
    assert results[0].error is None
    assert [loss for _, loss, _ in results[0].steps] == pytest.approx(reference.losses, abs=2e-2)
    for formats in gang.results(2, on_cpu, held, config):
        assert set(formats.values()) == {torch.bfloat16, torch.float32}
        for name, dtype in formats.items():
            assert (dtype is torch.float32) == ("lora_" in name), name


def held(world: World, config: TrainerConfig) -> dict[str, torch.dtype]:
    engine: Any = built(world, config).engine
    if hasattr(engine, "_shards"):
        return {name: shard.parameter.dtype for name, shard in engine._shards.items()}
    return {name: parameter.dtype for name, parameter in engine._model.named_parameters()}


@pytest.fixture(scope="module")
def stopped(gang: Gang, start: Path, text_file: Path, tmp_path_factory: Any) -> Path:
    path: Path = tmp_path_factory.mktemp("stopped") / "checkpoints"
    config = lora("megatron/optim", text_file, path, start, lora={"dropout": 0.1})
    for result in gang.results(2, run_on_cpu, config, STOP):
        assert isinstance(result.error, PreemptedError), result.error
    return path


def test_checkpoints_hold_adapters_alone(
    gang: Gang, start: Path, begun: Adapters, stopped: Path, text_file: Path
) -> None:
    for engine in ("megatron/optim", "ddp"):
        config = lora(engine, text_file, stopped, start)
        found = gang.results(2, on_cpu, loaded, config)[0]
        assert {name for name in found if "/" not in name} == begun.keys()
        assert {name.partition("/")[0] for name in found if "/" in name} == begun.keys()


def loaded(world: World, config: TrainerConfig) -> Adapters:
    loop = built(world, config)
    assert loop.checkpoints.resume(loop.engine) is not None
    return digest(loop)


@pytest.mark.parametrize(
    ("engine", "ranks"), [("megatron/optim", 2), ("fsdp2/optim_grads_params", 2), ("ddp", 1)]
)
def test_goes_on_with_the_same_adapters(
    gang: Gang, start: Path, stopped: Path, text_file: Path, engine: str, ranks: int
) -> None:
    """What the model says after a resume; with dropout a next step depends on the ranks."""
    wanted = gang.results(2, on_cpu, said, lora("ddp", text_file, stopped, start))[0]
    config = lora(engine, text_file, stopped, start, ranks=ranks)
    found = gang.results(ranks, on_cpu, said, config)[0]
    assert torch.allclose(found, wanted, atol=1e-5)


def said(world: World, config: TrainerConfig) -> torch.Tensor:
    loop = built(world, config)
    loop.checkpoints.resume(loop.engine)
    with loop.engine.evaluation():
        return loop.engine.logits(TOKENS).detach().clone()


def test_is_bit_identical_on_the_same_ranks(
    gang: Gang, start: Path, text_file: Path, tmp_path: Path
) -> None:
    def config(path: str) -> TrainerConfig:
        choice = {"lora": {"dropout": 0.2}, "micro_batches": 3}
        return lora("fsdp2/optim_grads_params", text_file, tmp_path / path, start, **choice)

    undisturbed = gang.results(2, run_on_cpu, config("a"))[0]
    gang.results(2, run_on_cpu, config("b"), STOP)
    resumed = gang.results(2, run_on_cpu, config("b"))[0]
    assert resumed.resumed_from == STOP
    assert resumed.steps == undisturbed.steps[STOP:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 3}, "other heads, experts, activation or LoRA alpha"),
        ({"rank": 2}, "is of a model with other parameters"),
        ({"targetModules": ["q_proj"]}, "is of a model with other parameters"),
    ],
)
def test_other_adapters_are_refused(
    gang: Gang, start: Path, stopped: Path, text_file: Path, change: Any, message: str
) -> None:
    config = lora("ddp", text_file, stopped, start, lora=change)
    for result in gang.results(2, run_on_cpu, config):
        assert isinstance(result.error, ConfigError), result.error
        assert message in str(result.error)


def test_adapters_of_another_base_are_refused(
    gang: Gang, start: Path, stopped: Path, text_file: Path, tmp_path: Path
) -> None:
    """One tensor of the same shape is enough."""
    other = saved_model(tmp_path / "other", tied=False)
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] *= 1.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    for result in gang.results(2, run_on_cpu, lora("ddp", text_file, stopped, other)):
        assert isinstance(result.error, ConfigError), result.error
        assert str(result.error).startswith("model.path: ")
        assert "LoRA adapters of other weights" in str(result.error)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            ["q_porj"],
            "'q_porj' is no linear layer of the model, or its head: choose from down_proj",
        ),
        (["q_proj", "lm_head"], "'lm_head' is no linear layer of the model, or its head"),
        (["embed_tokens"], "'embed_tokens' is no linear layer of the model"),
    ],
)
def test_layers_that_cannot_have_adapters_are_refused(
    gang: Gang, start: Path, text_file: Path, tmp_path: Path, targets: list[str], message: str
) -> None:
    config = lora("ddp", text_file, tmp_path, start, lora={"targetModules": targets})
    for result in gang.results(2, run_on_cpu, config):
        assert isinstance(result.error, ConfigError), result.error
        assert str(result.error).startswith(f"model.lora.targetModules: {message}")


def test_adapters_that_megatron_fsdp_cannot_divide_are_refused(
    gang: Gang, start: Path, text_file: Path, tmp_path: Path
) -> None:
    """Rows of 32 and 44 numbers, of which 4 are fewer than the buffer's common width of 352."""
    config = lora("megatron/optim", text_file, tmp_path, start, lora={"rank": 4})
    for result in gang.results(2, run_on_cpu, config):
        assert isinstance(result.error, ConfigError), result.error
        assert "model.lora.rank: Megatron FSDP cannot divide adapters" in str(result.error)


def logits_after(world: World, config: TrainerConfig) -> torch.Tensor:
    """Train and export; then the logits of the trained engine, from its checkpoint."""
    train(config, world, Recorder(world.rank))
    return said(world, config)


Open = Callable[[Path, Path], Any]


def as_adapter(base: Path, export: Path) -> Any:
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(export))


def merged(base: Path, export: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(export)


def by_transformers(base: Path, export: Path) -> Any:
    """transformers finds the base by itself, where it is where it was."""
    return AutoModelForCausalLM.from_pretrained(export)


@pytest.mark.parametrize(
    ("settings", "engine", "kind", "opened"),
    [
        (None, "megatron/optim_grads_params", "adapter", as_adapter),
        (None, "fsdp2/optim_grads_params", "merged", merged),
        (None, "ddp", "adapter", by_transformers),
        # GPT-2 holds its layers the other way round, and with biases; its head is tied.
        (GPT2, "fsdp2/optim", "adapter", as_adapter),
        (GPT2, "megatron/optim", "merged", merged),
        # Experts are no layers of peft's: their attention is adapted.
        (MIXTURE, "fsdp2/optim_grads_params", "merged", merged),
    ],
)
def test_the_export_says_what_the_engine_says(
    gang: Gang,
    start: Path,
    text_file: Path,
    tmp_path: Path,
    settings: dict[str, Any] | None,
    engine: str,
    kind: str,
    opened: Open,
) -> None:
    if settings is not None:
        start = tmp_path / "start"
        torch.manual_seed(7)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).save_pretrained(start)
    path = tmp_path / "run"
    saves = {"export": True, "everySteps": 0}
    config = lora(engine, text_file, path, start, saves=saves, lora={"export": kind})
    wanted = gang.results(2, on_cpu, logits_after, config)[0]
    with torch.no_grad():
        found = opened(start, path / "export").eval()(input_ids=TOKENS).logits
        base = merged(start, start).eval()(input_ids=TOKENS).logits
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not torch.allclose(base, wanted, atol=1e-2)
