"""Models that transformers would build and that cannot compute: told before the first step."""

from typing import Any

import pytest

from mfsdp_trainer.config import ModelConfig
from mfsdp_trainer.config.performance import Attention
from mfsdp_trainer.data.tokenizer import byte_tokenizer
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.models.architecture import build_meta, read_config
from mfsdp_trainer.models.fit import require_fit

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
OPT = {
    "model_type": "opt",
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "word_embed_proj_dim": 32,
}
MOE = LLAMA | {"model_type": "mixtral", "num_local_experts": 4}


def fit(settings: dict[str, Any], length: int) -> None:
    config = read_config(ModelConfig(config=settings), byte_tokenizer().vocabulary)
    require_fit(config, length)


@pytest.mark.parametrize("settings", [LLAMA, GPT2, OPT, MOE])
def test_sound_models_pass(settings: dict[str, Any]) -> None:
    fit(settings, 16)


def test_rotated_positions_have_no_end() -> None:
    fit(LLAMA | {"max_position_embeddings": 16}, 64)


@pytest.mark.parametrize("settings", [GPT2, OPT])
def test_a_sequence_longer_than_the_learned_positions(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"data\.sequenceLength 17 is longer than the 16 pos"):
        fit(settings, 17)


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"model: llama cannot compute .* sizes do not fit"):
        fit(LLAMA | {"num_key_value_heads": 3}, 16)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"vocab_size": "300"}, "'vocab_size' expected int, got str"),
        ({"hidden_size": 33}, "hidden size .33. is not a multiple"),
    ],
)
def test_what_transformers_says_is_told_whole(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"model.config: transformers refuses it: .*{says}"):
        fit(LLAMA | settings, 16)


def test_a_routers_auxiliary_loss_is_refused_where_it_is_asked_for() -> None:
    """It would be left out without a word: the loss here is made of the head's output alone."""
    with pytest.raises(ConfigError, match="set output_router_logits to false"):
        fit(MOE | {"output_router_logits": True}, 16)
    fit(MOE | {"output_router_logits": False}, 16)


def test_settings_that_nothing_reads_are_told(caplog: pytest.LogCaptureFixture) -> None:
    fit(MOE | {"torch_dtype": "bfloat16", "router_aux_loss_coef": 0.1}, 16)
    for name in ("torch_dtype", "router_aux_loss_coef"):
        assert f"model.config.{name} has no effect" in caplog.text
    with pytest.raises(ConfigError, match=r"attn_implementation: set performance\.attention"):
        fit(LLAMA | {"attn_implementation": "eager"}, 16)


def test_a_flash_attention_that_is_not_there_is_named() -> None:
    config = read_config(ModelConfig(config=LLAMA), byte_tokenizer().vocabulary)
    with pytest.raises(ConfigError, match=r"^performance\.attention flash_attention_2: .* llama"):
        build_meta(config, Attention.FLASH)


def test_attention_that_a_model_has_built_in_cannot_be_chosen() -> None:
    """transformers leaves it as it was, with a warning alone."""
    settings = {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 2}
    config = read_config(ModelConfig(config=settings), byte_tokenizer().vocabulary)
    with pytest.raises(ConfigError, match=r"^performance\.attention sdpa: .* bloom"):
        build_meta(config, Attention.SDPA)
