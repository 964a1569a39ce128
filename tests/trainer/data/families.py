"""Tiny models of the families that people train, and of some that cannot be packed."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

TINY: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
GPT2: dict[str, Any] = {
    "vocab_size": 260,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "pad_token_id": None,
}
_WINDOW = {"head_dim": 8, "sliding_window": 6}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": TINY,
    "qwen3": {**TINY, "head_dim": 8},
    "mistral": {**TINY, "sliding_window": 6},
    "gemma3_text": {**TINY, **_WINDOW},
    "qwen3_moe": {
        **TINY,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "gpt2": GPT2,
}
UNPACKABLE: dict[str, dict[str, Any]] = {
    "gpt_oss": {**TINY, "num_local_experts": 4, "head_dim": 8},
    "bloom": {"vocab_size": 260, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "opt": {**TINY, "ffn_dim": 48},
    "lfm2": {**TINY, "layer_types": ["conv", "full_attention"]},
}


def build(family: str, attention: str = "sdpa") -> PreTrainedModel:
    """A model of a family with random weights, the same each time, that does not train."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.float().eval()
