"""Runs that must end: on every rank, with the reason, before any harm."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import BATCH, LENGTH, TINY, configuration, run_training
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import Reason
from mfsdp_trainer.data.order import sequence_numbers
from mfsdp_trainer.errors import CheckpointError, ConfigError, DataError, NonFiniteLossError

MARK = "~"
"""A character whose embedding is NaN in these tests."""


@pytest.fixture(scope="module")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY))
    with torch.no_grad():
        model.get_input_embeddings().weight[ord(MARK)] = float("nan")
    directory = tmp_path_factory.mktemp("poisoned") / "model"
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("strategy", ["ddp", "optim", "optim_grads_params"])
def test_a_nan_on_one_rank_stops_all_before_the_step(
    gang: Gang, poisoned_model: Path, tmp_path: Path, strategy: str
) -> None:
    """The mark stands in one sequence, which one rank meets in step 3."""
    count = 4 * BATCH
    poisoned = sequence_numbers(2 * BATCH, BATCH, count=count, seed=1234)[5]
    sequences = ["one ordinary sequence of " + "text " * LENGTH] * count
    sequences[poisoned] = MARK * 2 + sequences[poisoned]
    text = tmp_path / "text.txt"
    text.write_text("".join(line[:LENGTH] for line in sequences), encoding="utf-8")
    config = configuration(
        text,
        tmp_path / "run",
        strategy=strategy,
        ranks=2,
        micro_batches=3,
        model={"path": str(poisoned_model)},
        training={"steps": 8},
        checkpoint={"path": str(tmp_path / "run"), "everySteps": 1, "keep": 9, "export": True},
    )
    results = gang.results(2, run_training, config)
    assert [step for step, _, _ in results[0].steps] == [1, 2]
    for result in results:
        assert isinstance(result.error, NonFiniteLossError), result.error
        assert result.error.reason is Reason.NON_FINITE_LOSS
        assert "step 3: loss nan" in str(result.error)
    saved = sorted(entry.name for entry in (tmp_path / "run").glob("step-*"))
    assert saved == ["step-00000001", "step-00000002"]
    assert not (tmp_path / "run" / "export").exists()


def test_an_exploding_norm_stops_too(gang: Gang, text_file: Path, tmp_path: Path) -> None:
    """The loss is finite in the step whose gradients overflow."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY))
    with torch.no_grad():
        # Logits of zero: a good loss, over hidden states whose squares have no fp32.
        model.get_output_embeddings().weight.zero_()
        model.model.norm.weight.fill_(1e30)
    model.save_pretrained(tmp_path / "model")
    config = configuration(
        text_file, tmp_path / "run", ranks=2, model={"path": str(tmp_path / "model")}
    )
    for result in gang.results(2, run_training, config):
        assert isinstance(result.error, NonFiniteLossError), result.error
        assert "step 1: loss 5.5607, gradient norm inf" in str(result.error)


def cases(tmp_path: Path, text: Path) -> dict[str, tuple[dict[str, Any], type, str]]:
    """What a run is given, and how it ends on every rank."""
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{"text": \n', encoding="utf-8")
    return {
        "no text": (
            {"data": {"sources": [{"path": str(tmp_path / "nowhere")}]}},
            DataError,
            f"data.sources: {tmp_path}/nowhere does not exist in the container",
        ),
        "broken line": (
            {"data": {"sources": [{"path": str(broken), "format": "jsonl"}]}},
            DataError,
            f"{broken}:2: not a line of JSON: ",
        ),
        "too little text": (
            {"data": {"sequenceLength": 100_000}},
            DataError,
            "fewer than one sequence of data.sequenceLength 100000 + 1: add text or shorten",
        ),
        "no model": (
            {"model": {"path": str(tmp_path / "nowhere")}},
            DataError,
            f"model.path {tmp_path}/nowhere: no such directory in the container",
        ),
        "misspelt setting": (
            {"model": {"config": {**TINY, "hiden_size": 8}}},
            ConfigError,
            "model.config.hiden_size is not a setting of model type llama: did you mean "
            "hidden_size?",
        ),
        "vocabulary too small": (
            {"model": {"config": {**TINY, "vocab_size": 100}}},
            ConfigError,
            "model.config.vocab_size: vocab_size 100 is smaller than the tokenizer's 257 tokens",
        ),
        "impossible model": (
            {"model": {"config": {**TINY, "hidden_size": 31}}},
            ConfigError,
            "model.config: transformers refuses it: ",
        ),
        "sizes that do not fit": (
            {"model": {"config": {**TINY, "num_key_value_heads": 3}}},
            ConfigError,
            "model: llama cannot compute with this configuration: its sizes do not fit each other",
        ),
        "path is a file": (
            {"checkpoint": {"path": str(text)}},
            CheckpointError,
            f"checkpoint.path: cannot write {text}: File exists: give it a volume with room",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "no text",
        "broken line",
        "too little text",
        "no model",
        "misspelt setting",
        "vocabulary too small",
        "impossible model",
        "sizes that do not fit",
        "path is a file",
    ],
)
def test_each_wrong_input_gets_one_line_on_every_rank(
    gang: Gang, text_file: Path, tmp_path: Path, name: str
) -> None:
    changes, kind, message = cases(tmp_path, text_file)[name]
    config: TrainerConfig = configuration(text_file, tmp_path / "run", ranks=2, **changes)
    for result in gang.results(2, run_training, config):
        assert type(result.error) is kind, result.error
        assert message in str(result.error)
        assert "\n" not in str(result.error)
