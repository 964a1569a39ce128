"""Head and loss in one, in whole runs: other models' heads, and what a step holds in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import megatron, run_on_cpu
from tests.trainer.memory import Live
from tests.trainer.reference import train_reference
from tests.trainer.runs import TINY, Recorder, configuration, run_training
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.models import loss as module
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
LARGE = 65_536
CHUNK = 2**20


@pytest.mark.parametrize("kind", HEADS)
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
        assert losses == pytest.approx(reference.losses, abs=1e-5)
        assert norms == pytest.approx(reference.norms, abs=1e-4)


def held(world: World, config: TrainerConfig) -> tuple[int, int, int]:
    """Bytes at rest, at the peak of the second step, and of its largest tensor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", CHUNK)
        loop, _ = build(config, world, Recorder(world.rank))
        position, _ = loop.advance(Position(step=0, consumed=0))
        state = loop.engine.state()
        slots = [tensor for entry in state["optimizer"].values() for tensor in entry.values()]
        with Live(*state["model"].values(), *slots) as live:
            loop.advance(position)
    return live.start, live.peak, live.largest


def test_a_step_holds_two_units_and_a_chunk_of_logits(
    gang: Gang, text_file: Path, tmp_path: Path
) -> None:
    """Of a vocabulary of 64k: 6 sequences of 32 would have 48 MiB of logits, and their gradient."""
    config = configuration(
        text_file,
        tmp_path,
        strategy="optim_grads_params",
        ranks=2,
        model={"config": {**TINY, "vocab_size": LARGE, "hidden_size": 16}},
    )
    unit, chunk = LARGE * 16 * 4, CHUNK * 4
    for start, peak, largest in gang.results(2, held, config):
        print(start / unit, peak / unit, largest / unit)
        assert largest <= max(unit, chunk)
        assert peak - start <= 2 * 2 * unit + chunk
