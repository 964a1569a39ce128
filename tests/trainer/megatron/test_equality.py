"""Loss and gradient norm under Megatron FSDP equal one unsharded process, at every step."""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import GEMMA, GPT2, MIXTURE, ODD, megatron, run_on_cpu
from tests.trainer.reference import Reference, assert_equal_to, train_reference
from transformers import AutoConfig, AutoModelForCausalLM

STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
PAIRWISE = [
    # strategy, ranks, tied, micro-batches: every pair of values of two columns occurs
    ("no_shard", 1, False, 3),
    ("optim", 1, True, 1),
    ("optim_grads", 1, False, 1),
    ("optim_grads_params", 1, True, 3),
    ("no_shard", 2, True, 1),
    ("optim", 2, False, 3),
    ("optim_grads", 2, True, 3),
    ("optim_grads_params", 2, False, 1),
    ("no_shard", 4, False, 1),
    ("optim", 4, True, 3),
    ("optim_grads", 4, False, 3),
    ("optim_grads_params", 4, True, 3),
]
REST = sorted({*product(STRATEGIES, (1, 2, 4), (False, True), (1, 3))} - {*PAIRWISE})

assert_equal = partial(assert_equal_to, run_on_cpu)

Start = Callable[..., tuple[Path, Reference]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Start:
    """A directory with weights of a model, and how an unsharded process trains it."""
    known: dict[tuple[Any, ...], tuple[Path, Reference]] = {}

    def make(settings: dict[str, Any], *, tied: bool) -> tuple[Path, Reference]:
        settings = {**settings, "tie_word_embeddings": tied}
        key = tuple(settings.items())
        if key not in known:
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
            directory = tmp_path_factory.mktemp("start")
            model.save_pretrained(directory)
            known[key] = directory, train_reference(directory, text_file)
        return known[key]

    return make


@pytest.mark.parametrize(
    ("strategy", "ranks", "tied", "micro_batches"),
    [*PAIRWISE, *(pytest.param(*case, marks=pytest.mark.soak) for case in REST)],
)
def test_equals_one_unsharded_process(
    gang: Gang,
    start: Start,
    text_file: Path,
    tmp_path: Path,
    strategy: str,
    ranks: int,
    tied: bool,
    micro_batches: int,
) -> None:
    directory, reference = start(ODD, tied=tied)
    config = megatron(
        text_file,
        tmp_path,
        strategy,
        ranks=ranks,
        micro_batches=micro_batches,
        model={"path": str(directory)},
    )
    assert_equal(gang, config, reference)


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [
        ("optim", 2),
        ("optim_grads", 2),
        ("optim_grads_params", 2),
        # A copy on each rank: nothing is left to shard.
        ("optim_grads_params", 4),
    ],
)
def test_hybrid_sharding_equals_it_too(
    gang: Gang, start: Start, text_file: Path, tmp_path: Path, strategy: str, replicas: int
) -> None:
    directory, reference = start(ODD, tied=False)
    config = megatron(
        text_file,
        tmp_path,
        strategy,
        replicas=replicas,
        ranks=4,
        micro_batches=3,
        model={"path": str(directory)},
    )
    assert_equal(gang, config, reference)


@pytest.mark.parametrize(
    ("settings", "strategy", "ranks", "replicas"),
    [
        # `.experts.` in names, which the package takes for expert parallelism
        (MIXTURE, "optim_grads_params", 2, 1),
        (MIXTURE, "optim", 4, 2),
        # a scale of the embedding that is computed, in a buffer; sliding windows
        (GEMMA, "optim_grads_params", 2, 1),
        # biases, positions that are trained, and sizes that have little in common
        (GPT2, "optim_grads_params", 4, 1),
        pytest.param(MIXTURE, "optim_grads", 4, 1, marks=pytest.mark.soak),
        pytest.param(GEMMA, "no_shard", 4, 1, marks=pytest.mark.soak),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_other_models_equal_it_too(
    gang: Gang,
    start: Start,
    text_file: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    strategy: str,
    ranks: int,
    replicas: int,
) -> None:
    directory, reference = start(settings, tied=True)
    config = megatron(
        text_file,
        tmp_path,
        strategy,
        replicas=replicas,
        ranks=ranks,
        micro_batches=3,
        model={"path": str(directory)},
    )
    assert_equal(gang, config, reference)


@pytest.mark.parametrize(
    "strategy",
    [
        "optim",
        "optim_grads_params",
        pytest.param("no_shard", marks=pytest.mark.soak),
        pytest.param("optim_grads", marks=pytest.mark.soak),
    ],
)
def test_bf16_over_fp32_masters_stays_near(
    gang: Gang, start: Start, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    directory, reference = start(ODD, tied=True)
    config = megatron(
        text_file,
        tmp_path,
        strategy,
        ranks=2,
        micro_batches=3,
        model={"path": str(directory)},
        training={"precision": "bf16"},
    )
    assert_equal(gang, config, reference, tolerance=2e-2)
