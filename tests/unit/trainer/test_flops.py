"""The count of FLOPs against torch's own counter, and the parts of it that a counter cannot see."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.observe.flops import flops_per_token, peak_flops
from mfsdp_trainer.observe.speed import Scale

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOE = {
    **COMMON,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama"},
    "llama-tied": {**COMMON, "model_type": "llama", "tie_word_embeddings": True},
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": 16},
    "qwen3-moe": MOE,
    "gpt2": {"model_type": "gpt2", "vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4},
}
LENGTH = 24
TOKENS = torch.arange(2 * LENGTH).reshape(2, LENGTH) % 97


def model(family: str, **changes: Any) -> PreTrainedModel:
    """Attention and experts in plain matrix products, which torch's counter sees whole."""
    settings = AutoConfig.for_model(**{**FAMILIES[family], **changes})
    built: PreTrainedModel = AutoModelForCausalLM.from_config(
        settings, attn_implementation="eager", experts_implementation="eager"
    )
    return built


def counted(model: PreTrainedModel) -> float:
    """FLOPs of a forward and a backward, for each token."""
    with FlopCounterMode(display=False) as counter:
        model(input_ids=TOKENS, use_cache=False).logits.sum().backward()
    return counter.get_total_flops() / TOKENS.numel()


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_what_torch_counts(family: str) -> None:
    built = model(family)
    # The rotary table of a Llama is a small product that no formula counts.
    assert counted(built) == pytest.approx(flops_per_token(built, LENGTH), rel=0.01)


def test_the_formula_by_hand() -> None:
    """6N + 12LHQT, N without the embedding that is only looked up."""
    built = model("llama")
    layer = 32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 48
    weights = 2 * layer + 97 * 32
    assert flops_per_token(built, LENGTH) == 6 * weights + 12 * 2 * 4 * 8 * LENGTH


def test_frozen_weights_have_no_gradient_of_their_own() -> None:
    """All but the first layer's query is frozen: as in LoRA, gradients pass through the rest."""
    built = model("llama")
    trained = built.get_parameter("model.layers.0.self_attn.q_proj.weight")
    for parameter in built.parameters():
        parameter.requires_grad_(parameter is trained)
    whole = flops_per_token(model("llama"), LENGTH)
    frozen = (whole - 12 * 2 * 4 * 8 * LENGTH) / 6 - trained.numel()
    assert flops_per_token(built, LENGTH) == whole - 2 * frozen


def test_a_token_meets_its_experts_alone() -> None:
    few, many = model("qwen3-moe"), model("qwen3-moe", num_experts=16)
    gates = 2 * 8 * 32  # eight rows more in each layer's router
    assert flops_per_token(many, LENGTH) - flops_per_token(few, LENGTH) == 6 * gates


def test_a_sliding_window_bounds_what_a_token_looks_back_on() -> None:
    short = flops_per_token(model("llama"), 16)
    mistral = AutoConfig.for_model(**{**COMMON, "model_type": "mistral", "sliding_window": 16})
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(mistral)
    assert flops_per_token(built, 4096) == short


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GH200 480GB", 989),
    ],
)
def test_peaks(name: str, tflops: float) -> None:
    assert peak_flops(name) == tflops * 1e12


def test_mfu_is_shown_only_where_the_peak_is_known() -> None:
    assert peak_flops("Some new GPU") is None
    assert peak_flops("Some new GPU", 500.0) == 5e14
    assert Scale(4, "GPU", 6e9).mfu(1000.0) is None
    assert Scale(4, "GPU", 6e9, 1e15).mfu(400_000.0) == pytest.approx(0.6)
