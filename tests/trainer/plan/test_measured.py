"""The sums of `mfsdp plan` against what runs of two ranks on the CPU allocate and send."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import megatron, on_cpu
from tests.trainer.plan.measure import Measured, measure
from tests.trainer.runs import configuration
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.inspection.model import inspect
from mfsdp_trainer.plan import gpus
from mfsdp_trainer.plan.facts import ModelFacts
from mfsdp_trainer.plan.report import report
from mfsdp_trainer.plan.rows import Row

UNTIED: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "untied": UNTIED,
    "tied": {**UNTIED, "tie_word_embeddings": True},
    "mixture": {
        **UNTIED,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
}
STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
WAYS = [
    ("ddp", "no_shard"),
    *product(("torch_fsdp2", "megatron_fsdp"), STRATEGIES),
]
PAIRWISE = [
    # model, precision, micro-batches: each way of the nine runs with one of them
    [("untied", "fp32", 1), ("tied", "bf16", 3)],
    [("mixture", "bf16", 1), ("untied", "fp32", 3)],
    [("tied", "fp32", 3), ("mixture", "bf16", 1)],
]
CASES = [(*way, *PAIRWISE[at % 3][at % 2]) for at, way in enumerate(WAYS)]
REST = sorted(
    {*((*w, *c) for w in WAYS for c in product(MODELS, ("fp32", "bf16"), (1, 3)))} - {*CASES}
)


def run_of(
    engine: str,
    strategy: str,
    directory: Path,
    text: Path,
    *,
    ranks: int,
    replicas: int = 1,
    **choice: Any,
) -> TrainerConfig:
    """A small run under an engine and strategy."""
    if engine == "megatron_fsdp":
        return megatron(text, directory, strategy, ranks=ranks, replicas=replicas, **choice)
    named = "ddp" if engine == "ddp" else strategy
    config = configuration(text, directory, strategy=named, ranks=ranks, **choice)
    return config.model_copy(update={"data_parallel_replicas": replicas})


def measured(gang: Gang, config: TrainerConfig) -> Measured:
    """The fullest rank of a run."""
    if config.use_megatron_fsdp:
        found = gang.results(config.world_size, on_cpu, measure, config)
    else:
        found = gang.results(config.world_size, measure, config)
    return max(found, key=lambda rank: rank.states)


@pytest.fixture(scope="module")
def facts() -> dict[tuple[Any, ...], ModelFacts]:
    """What was found out about models so far."""
    return {}


def planned(config: TrainerConfig, known: dict[tuple[Any, ...], ModelFacts]) -> Row:
    """What the plan says of the run."""
    key = (str(config.model), config.training.precision, config.training.micro_batch_size)
    if key not in known:
        known[key] = inspect(config)
    return report(config, known[key], gpus.named(gpus.DEFAULT)).chosen


def assert_near(found: Measured, plan: Row) -> None:
    assert plan.memory.states == pytest.approx(found.states, rel=0.1)
    assert plan.memory.peak == pytest.approx(found.peak, rel=0.15)
    sent = {
        name: getattr(plan.traffic, name) for name in ("all_gather", "reduce_scatter", "all_reduce")
    }
    for name, wanted in sent.items():
        assert wanted == pytest.approx(found.sent.get(name, 0), rel=0.03, abs=2048), name


@pytest.mark.parametrize(
    ("engine", "strategy", "model", "precision", "micro_batches"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.soak) for case in REST)],
)
def test_a_run_allocates_and_sends_what_the_plan_says(
    gang: Gang,
    facts: dict[tuple[Any, ...], ModelFacts],
    text_file: Path,
    tmp_path: Path,
    engine: str,
    strategy: str,
    model: str,
    precision: str,
    micro_batches: int,
) -> None:
    config = run_of(
        engine,
        strategy,
        tmp_path,
        text_file,
        ranks=2,
        micro_batches=micro_batches,
        model={"config": MODELS[model]},
        training={"precision": precision},
    )
    assert_near(measured(gang, config), planned(config, facts))


COPIES = {("torch_fsdp2", "optim_grads_params"), ("megatron_fsdp", "optim")}


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        pytest.param(*way, marks=[] if way in COPIES else pytest.mark.soak)
        for way in product(("torch_fsdp2", "megatron_fsdp"), STRATEGIES[1:])
    ],
)
def test_copies_of_shards_too(
    gang: Gang,
    facts: dict[tuple[Any, ...], ModelFacts],
    text_file: Path,
    tmp_path: Path,
    engine: str,
    strategy: str,
) -> None:
    config = run_of(
        engine,
        strategy,
        tmp_path,
        text_file,
        ranks=4,
        replicas=2,
        micro_batches=3,
        model={"config": UNTIED},
        training={"precision": "bf16"},
    )
    assert_near(measured(gang, config), planned(config, facts))


def test_adapters_are_counted_and_what_they_adapt(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**UNTIED))
    base.save_pretrained(tmp_path / "base")
    config = run_of(
        "ddp",
        "no_shard",
        tmp_path,
        text_file,
        ranks=2,
        micro_batches=3,
        model={"path": str(tmp_path / "base"), "lora": {"rank": 16}},
        training={"precision": "bf16"},
    )
    assert_near(measured(gang, config), planned(config, {}))
