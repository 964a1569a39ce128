"""No token sees another document: for each family, and what would break it in silence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.data.families import FAMILIES, UNPACKABLE, build
from tests.trainer.gang import Gang
from tests.trainer.runs import BATCH, Recorder, configuration, run_training
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.data import Packing
from mfsdp_trainer.data.batches import MicroBatch, Parts
from mfsdp_trainer.data.order import Place
from mfsdp_trainer.data.stream import Stream
from mfsdp_trainer.evaluation import evaluate
from mfsdp_trainer.models.head import model_inputs
from mfsdp_trainer.models.loss import IGNORE, logits_loss
from mfsdp_trainer.run import build as build_run
from mfsdp_trainer.world import World

LENGTH = 24
SECOND = 9
"""Where the second document begins in the first sequence."""


def batches() -> tuple[MicroBatch, MicroBatch]:
    """Two sequences that differ in their first document alone, with labels of the second alone."""
    tokens = np.random.default_rng(1).integers(0, 256, LENGTH + 1).astype(np.uint16)
    other = tokens.copy()
    other[:SECOND] = np.random.default_rng(2).integers(0, 256, SECOND)
    made = []
    for stream in (tokens, other):
        parts = Parts([Stream(stream, np.array([0, SECOND]))], LENGTH, Packing.DOCUMENTS)
        batch = parts.batch([Place(0, 0)])
        batch.labels[:, : SECOND - 1] = IGNORE
        assert batch.tokens == LENGTH - SECOND
        made.append(batch)
    return made[0], made[1]


def difference(model: PreTrainedModel, **changes: Any) -> float:
    """How much the second document's loss depends on the first."""
    losses = []
    for batch in batches():
        with torch.no_grad():
            logits = model(**model_inputs(batch.inputs, batch.positions) | changes).logits
        losses.append(float(logits_loss(logits, batch.labels)))
    return abs(losses[0] - losses[1])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_does_not_see_the_one_before(family: str, attention: str) -> None:
    assert difference(build(family, attention)) == 0


def continued() -> Tensor:
    """Positions with which the second document begins right after the last one of the first."""
    return torch.arange(LENGTH)[None]


@pytest.mark.parametrize(
    "change",
    [
        {"attention_mask": torch.ones(1, LENGTH, dtype=torch.long)},
        {"use_cache": True},
        {"position_ids": continued()},
    ],
    ids=["2-D mask", "cache", "continued positions"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_of_these_would_leak_in_silence(family: str, change: dict[str, Any]) -> None:
    """What `model_inputs` and `Sequences` leave out is left out for a reason that holds still."""
    assert difference(build(family), **change) > 1e-4


def several_documents(directory: Path) -> Path:
    """Documents of many lengths."""
    directory.mkdir()
    for number in range(40):
        text = f"{number} squared is {number * number}. " * (1 + number * 7 % 5)
        (directory / f"{number:02d}.txt").write_text(text[: 5 + number * 3], encoding="utf-8")
    return directory


def packed_and_apart(world: World, config: TrainerConfig) -> tuple[float, float, float]:
    """The loss of a step, of an evaluation, and of the same documents computed one by one."""
    loop, _ = build_run(config, world, Recorder(world.rank))
    batches = loop.data.micro_batches(0, BATCH)
    (tokens,) = world.sum([sum(batch.tokens for batch in batches)])
    (stepped,) = world.sum([loop._forward_backward(batches, tokens)])
    evaluated = evaluate(loop.engine, batches, world)
    model = AutoModelForCausalLM.from_pretrained(str(config.model.path)).float().eval()
    total = sum(_apart(model, batch) for batch in batches)
    (apart,) = world.sum([total])
    return stepped, evaluated, apart / tokens


def _apart(model: PreTrainedModel, batch: MicroBatch) -> float:
    total = 0.0
    assert batch.positions is not None
    for inputs, labels, positions in zip(batch.inputs, batch.labels, batch.positions, strict=True):
        begins = torch.nonzero(positions == 0).flatten().tolist()
        for begin, end in zip(begins, [*begins[1:], len(inputs)], strict=True):
            with torch.no_grad():
                logits = model(input_ids=inputs[None, begin:end]).logits
            total += float(logits_loss(logits, labels[None, begin:end]))
    return total


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 1), ("optim_grads_params", 2)])
def test_a_packed_step_is_the_mean_over_its_documents_alone(
    gang: Gang, tmp_path: Path, strategy: str, ranks: int, family: str
) -> None:
    build(family).save_pretrained(tmp_path / "model")
    config = configuration(
        several_documents(tmp_path / "texts"),
        tmp_path,
        strategy=strategy,
        ranks=ranks,
        model={"path": str(tmp_path / "model")},
    )
    for stepped, evaluated, apart in gang.results(ranks, packed_and_apart, config):
        assert stepped == pytest.approx(apart, abs=2e-6)
        assert evaluated == pytest.approx(apart, abs=2e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", UNPACKABLE)
def test_a_model_that_would_leak_is_refused_and_trains_plain(
    gang: Gang, text_file: Path, tmp_path: Path, family: str, precision: str
) -> None:
    model = {"config": {"model_type": family, **UNPACKABLE[family]}}
    training = {"steps": 1, "warmupSteps": 0, "precision": precision}
    results = []
    for packing in ("documents", "plain"):
        config = configuration(
            text_file, tmp_path / packing, model=model, training=training, data={"packing": packing}
        )
        (result,) = gang.results(1, run_training, config)
        results.append(result)
    assert f"data.packing documents: a model of type {family} " in str(results[0].error)
    assert "set data.packing to plain" in str(results[0].error)
    assert results[1].error is None
    assert len(results[1].steps) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trial_lets_every_family_pass_in_bf16(
    gang: Gang, text_file: Path, tmp_path: Path, family: str
) -> None:
    model = {"config": {"model_type": family, **FAMILIES[family]}}
    training = {"steps": 1, "warmupSteps": 0, "precision": "bf16"}
    config = configuration(text_file, tmp_path, model=model, training=training)
    (result,) = gang.results(1, run_training, config)
    assert result.error is None
