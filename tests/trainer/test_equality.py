"""Loss and gradient norm of every engine and strategy equal one unsharded process."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.reference import Reference, assert_equal_to, train_reference
from tests.trainer.runs import TINY, Recorder, configuration, run_training
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

STRATEGIES = ["ddp", "no_shard", "optim", "optim_grads", "optim_grads_params"]
# Every pair of values of two columns occurs. The matrix in full is for `make soak`.
PAIRWISE = [
    # strategy, ranks, tied, micro-batches; sorted by ranks: a gang of one size is made once
    ("ddp", 1, True, 3),
    ("no_shard", 1, False, 1),
    ("optim", 1, True, 3),
    ("optim_grads", 1, False, 3),
    ("optim_grads_params", 1, True, 1),
    ("ddp", 2, False, 1),
    ("no_shard", 2, True, 3),
    ("optim", 2, False, 3),
    ("optim_grads", 2, True, 1),
    ("optim_grads_params", 2, False, 3),
    ("ddp", 4, False, 3),
    ("no_shard", 4, False, 3),
    ("optim", 4, True, 1),
    ("optim_grads", 4, True, 3),
    ("optim_grads_params", 4, True, 3),
]
REST = sorted(
    {*product(STRATEGIES, (1, 2, 4), (False, True), (1, 3))} - {*PAIRWISE}, key=lambda c: (c[1], c)
)
assert_equal = partial(assert_equal_to, run_training)
HYBRID = ["optim", "optim_grads", "optim_grads_params"]


@pytest.fixture(scope="session")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A directory with weights for each of tied and untied."""
    directories = {}
    for tied in (False, True):
        torch.manual_seed(7)
        settings = {**TINY, "tie_word_embeddings": tied}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
        directories[tied] = tmp_path_factory.mktemp("start") / "model"
        model.save_pretrained(directories[tied])
    return directories


@pytest.fixture(scope="session")
def references(starts: dict[bool, Path], text_file: Path) -> dict[bool, Reference]:
    return {tied: train_reference(start, text_file) for tied, start in starts.items()}


def config_from(start: Path, text: Path, checkpoints: Path, **choice: Any) -> TrainerConfig:
    return configuration(text, checkpoints, model={"path": str(start)}, **choice)


@pytest.mark.parametrize(
    ("strategy", "ranks", "tied", "micro_batches"),
    [*PAIRWISE, *(pytest.param(*case, marks=pytest.mark.soak) for case in REST)],
)
def test_equals_one_unsharded_process(
    gang: Gang,
    starts: dict[bool, Path],
    references: dict[bool, Reference],
    text_file: Path,
    tmp_path: Path,
    strategy: str,
    ranks: int,
    tied: bool,
    micro_batches: int,
) -> None:
    config = config_from(
        starts[tied],
        text_file,
        tmp_path,
        strategy=strategy,
        ranks=ranks,
        micro_batches=micro_batches,
    )
    assert_equal(gang, config, references[tied], tolerance=1e-5)


@pytest.mark.parametrize("strategy", HYBRID)
def test_hybrid_sharding_equals_it_too(
    gang: Gang,
    starts: dict[bool, Path],
    references: dict[bool, Reference],
    text_file: Path,
    tmp_path: Path,
    strategy: str,
) -> None:
    config = config_from(
        starts[False], text_file, tmp_path, strategy=strategy, ranks=4, micro_batches=3
    ).model_copy(update={"data_parallel_replicas": 2})
    assert config.resolve().shard_size == 2
    assert_equal(gang, config, references[False], tolerance=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "optim", "optim_grads_params"])
def test_bf16_over_fp32_masters_stays_near(
    gang: Gang,
    starts: dict[bool, Path],
    references: dict[bool, Reference],
    text_file: Path,
    tmp_path: Path,
    strategy: str,
) -> None:
    config = config_from(
        starts[True],
        text_file,
        tmp_path,
        strategy=strategy,
        ranks=2,
        micro_batches=3,
        training={"precision": "bf16"},
    )
    assert_equal(gang, config, references[True], tolerance=2e-2)


def trains_after_an_evaluation(world: World, config: TrainerConfig) -> tuple[bool, bool]:
    """Whether dropout is on: inside an evaluation, and after it."""
    loop, _ = build(config, world, Recorder(world.rank))
    with loop.engine.evaluation():
        inside = loop.engine._model.training  # type: ignore[attr-defined]
    return inside, loop.engine._model.training  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["ddp", "optim", "optim_grads_params"])
def test_an_evaluation_turns_dropout_off_and_on_again(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    """Megatron FSDP's is in test_corrections, by the numbers."""
    config = configuration(text_file, tmp_path, strategy=strategy, ranks=2)
    assert gang.results(2, trains_after_an_evaluation, config) == [(False, True)] * 2
