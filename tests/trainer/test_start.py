"""What a run starts from: the same numbers on every world size and engine, and the right ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.gang import Gang
from tests.trainer.runs import TINY, Recorder, configuration
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.models.architecture import build_meta
from mfsdp_trainer.models.weights import RandomWeights
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

COMMON = {key: value for key, value in TINY.items() if key != "model_type"}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **COMMON},
    "mistral": {"model_type": "mistral", **COMMON, "sliding_window": 16},
    "qwen3-tied": {"model_type": "qwen3", **COMMON, "head_dim": 8, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text",
        **COMMON,
        "head_dim": 8,
        "tie_word_embeddings": True,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        **COMMON,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 260,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
    },
}
TOKENS = torch.arange(48).reshape(2, 24) * 5 % 256


def start(world: World, config: TrainerConfig) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Whole parameters, and logits, of a run that has not trained."""
    loop, _ = build(config, world, Recorder(world.rank))
    with loop.engine.evaluation():
        logits = loop.engine.logits(TOKENS)
    return dict(loop.engine.full_parameters()), logits.detach().clone()


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_depend_on_seed_and_name_alone(
    gang: Gang, text_file: Path, tmp_path: Path, family: str
) -> None:
    model = {"config": FAMILIES[family]}
    starts = []
    for strategy, ranks in [("ddp", 1), ("optim_grads_params", 2), ("no_shard", 2)]:
        config = configuration(text_file, tmp_path, strategy=strategy, ranks=ranks, model=model)
        starts += gang.results(ranks, start, config)
    parameters, logits = starts[0]
    for other_parameters, other_logits in starts[1:]:
        assert other_parameters.keys() == parameters.keys()
        for name, tensor in other_parameters.items():
            assert torch.equal(tensor, parameters[name]), name
        assert torch.allclose(other_logits, logits, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_loads_what_transformers_saved(
    gang: Gang, text_file: Path, tmp_path: Path, family: str
) -> None:
    torch.manual_seed(3)
    settings = AutoConfig.for_model(**FAMILIES[family])
    theirs = AutoModelForCausalLM.from_config(settings).eval()
    theirs.save_pretrained(tmp_path / "model", max_shard_size="30KB")
    with torch.no_grad():
        wanted = theirs(input_ids=TOKENS).logits
    model = {"path": str(tmp_path / "model")}
    for strategy, ranks in [("ddp", 1), ("optim_grads_params", 2)]:
        config = configuration(text_file, tmp_path, strategy=strategy, ranks=ranks, model=model)
        for parameters, logits in gang.results(ranks, start, config):
            for name, tensor in theirs.named_parameters():
                assert torch.equal(parameters[name], tensor), name
            assert torch.allclose(logits, wanted, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_distributions_and_buffers_are_the_models_own(family: str) -> None:
    """transformers' own start differs in the random numbers alone: not in where, nor how wide."""
    torch.manual_seed(5)
    settings = AutoConfig.for_model(**FAMILIES[family])
    theirs = AutoModelForCausalLM.from_config(settings)
    ours = build_meta(settings)
    RandomWeights(ours, seed=1).fill(ours, torch.device("cpu"))
    for name, tensor in theirs.named_buffers():
        assert torch.equal(ours.get_buffer(name), tensor), name
    for name, tensor in theirs.named_parameters():
        found = ours.get_parameter(name)
        if tensor.unique().numel() == 1:
            assert torch.equal(found, tensor), name
        else:
            assert float(found.std()) == pytest.approx(float(tensor.std()), rel=0.2), name
            assert float(found.mean()) == pytest.approx(0, abs=float(tensor.std()) / 4), name


def test_each_seed_and_each_name_has_numbers_of_its_own() -> None:
    settings = AutoConfig.for_model(**TINY)
    weights = {}
    for seed in (1, 2):
        model = build_meta(settings)
        RandomWeights(model, seed).fill(model, torch.device("cpu"))
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                weights[seed, name] = float(parameter.detach().flatten()[0])
    assert len(set(weights.values())) == len(weights)
