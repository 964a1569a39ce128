"""Batches of which nothing is trained on: on one rank, on all, in an evaluation."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.data.kit import write_lines
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, configuration, run_training

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.batches import MicroBatch
from mfsdp_trainer.errors import DataError
from mfsdp_trainer.models.loss import IGNORE
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

LENGTH = 32


def tokens_file(file: Path, masked: int) -> dict[str, Any]:
    """12 documents of a sequence each; of the last `masked` nothing is trained on."""
    rows = [[(n * 7 + t) % 250 for t in range(LENGTH)] for n in range(13)]
    records = [
        {"input_ids": row, "labels": [-100] * LENGTH if n >= 13 - masked else row}
        for n, row in enumerate(rows)
    ]
    write_lines(file, *records)
    return {"path": str(file), "format": "jsonl", "content": "tokens"}


def masked_steps(world: World, config: TrainerConfig, masked_ranks: list[int]) -> Any:
    """Loss and norm of a step in which the given ranks have no token, and whether weights moved."""
    loop, _ = build(config, world, Recorder(world.rank))
    micro_batches = loop.data.micro_batches

    def some_masked(consumed: int, amount: int) -> list[MicroBatch]:
        batches = micro_batches(consumed, amount)
        if world.rank in masked_ranks:
            for batch in batches:
                batch.labels[:] = IGNORE
        return batches

    loop.data.micro_batches = some_masked  # type: ignore[method-assign]
    before = {name: tensor.clone() for name, tensor in loop.engine.full_parameters()}
    facts, _ = loop._step(Position(step=0, consumed=0))
    after = dict(loop.engine.full_parameters())
    moved = any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    finite = all(bool(tensor.isfinite().all()) for tensor in after.values())
    return facts.loss, facts.grad_norm, facts.tokens, moved, finite


@pytest.mark.parametrize("strategy", ["ddp", "optim_grads_params"])
def test_a_rank_without_tokens_does_not_count(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str
) -> None:
    config = configuration(text_file, tmp_path, strategy=strategy, ranks=2, micro_batches=3)
    for loss, norm, tokens, moved, finite in gang.results(2, masked_steps, config, [1]):
        assert tokens == 6 * LENGTH
        assert 4 < loss < 7
        assert math.isfinite(norm)
        assert norm > 0
        assert moved
        assert finite


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("strategy", ["ddp", "optim_grads_params"])
def test_a_step_without_tokens_leaves_the_weights(
    gang: Gang, text_file: Path, tmp_path: Path, strategy: str, optimizer: str
) -> None:
    config = configuration(
        text_file,
        tmp_path,
        strategy=strategy,
        ranks=2,
        micro_batches=3,
        training={"optimizer": optimizer, "weightDecay": 0.1},
    )
    for answer in gang.results(2, masked_steps, config, [0, 1]):
        assert answer == (0.0, 0.0, 0, False, True)


def test_a_run_over_masked_sequences_goes_to_its_end(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    source = tokens_file(tmp_path / "x.jsonl", masked=9)
    config = configuration(
        text_file,
        tmp_path,
        ranks=2,
        data={"sources": [source]},
        training={"globalBatchSize": 2, "microBatchSize": 1},
    )
    result, _ = gang.results(2, run_training, config)
    assert result.error is None
    assert [step for step, _, _ in result.steps] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(loss) and math.isfinite(norm) for _, loss, norm in result.steps)
    assert 0.0 in [loss for _, loss, _ in result.steps]
    assert any("no token of its sequences" in warning for warning in result.warnings)


def test_held_out_sequences_without_tokens_are_an_error(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    source = tokens_file(tmp_path / "x.jsonl", masked=13)
    config = configuration(text_file, tmp_path, ranks=2, data={"validation": [source]})
    for result in gang.results(2, run_training, config):
        assert isinstance(result.error, DataError)
        assert "held-out sequences" in str(result.error)
