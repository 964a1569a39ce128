"""What recompute keeps between forward and backward, and that it changes no number."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.trainer.memory import Live
from tests.trainer.runs import TINY
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.config.training import Recompute
from mfsdp_trainer.models.architecture import decoder_layers
from mfsdp_trainer.models.recompute import _policy, recompute

LLAMA = {**TINY, "num_hidden_layers": 4, "attention_dropout": 0.1}
GPT2 = {"model_type": "gpt2", "vocab_size": 260, "n_embd": 32, "n_layer": 4, "n_head": 4}
MIXTURE = {
    **TINY,
    "model_type": "qwen3_moe",
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
TOKENS = torch.arange(8 * 64).reshape(8, 64) * 7 % 260


def made(settings: dict[str, Any], how: Recompute) -> PreTrainedModel:
    torch.manual_seed(5)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    for layer in decoder_layers(model):
        recompute(layer, how)
    model.train()
    return model


def hidden(model: PreTrainedModel) -> Tensor:
    torch.manual_seed(9)
    answer: Tensor = model.base_model(input_ids=TOKENS, use_cache=False)[0]
    return answer


def slopes(settings: dict[str, Any], how: Recompute) -> list[Tensor]:
    model = made(settings, how)
    hidden(model).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("settings", [LLAMA, GPT2, MIXTURE], ids=lambda s: s["model_type"])
def test_gradients_stay_the_same_with_dropout_too(settings: dict[str, Any]) -> None:
    wanted = slopes(settings, Recompute.NONE)
    for how in (Recompute.SELECTIVE, Recompute.FULL):
        for found, slope in zip(slopes(settings, how), wanted, strict=True):
            assert torch.equal(found, slope)


class _Choices(TorchDispatchMode):
    """Counts how often routers choose experts."""

    made = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        self.made += func is torch.ops.aten.topk.default
        return func(*args, **(kwargs or {}))


def test_routers_choose_once() -> None:
    """Chosen again, of two that are equal the other one may be taken."""
    model = made(MIXTURE, Recompute.SELECTIVE)
    with _Choices() as choices:
        hidden(model).square().sum().backward()
    assert choices.made == MIXTURE["num_hidden_layers"]


def kept(how: Recompute) -> int:
    """Bytes that wait for the backward pass."""
    model = made({**LLAMA, "attention_dropout": 0.0}, how)
    with Live(*model.parameters()) as live:
        answer = hidden(model)
        after = live.now() - live.start
    assert answer.requires_grad
    return after


def test_memory_until_the_backward_pass() -> None:
    none, selective, full = (kept(how) for how in Recompute)
    inputs = 4 * TOKENS.numel() * 32 * 4
    assert full < 2 * inputs
    assert full < 0.6 * selective
    assert selective < 0.7 * none


def test_nothing_is_kept_for_an_evaluation() -> None:
    model = made(LLAMA, Recompute.FULL)
    with torch.no_grad():
        assert not hidden(model).requires_grad


@pytest.mark.parametrize(
    "flash", ["_scaled_dot_product_flash_attention", "_flash_attention_forward"]
)
def test_attention_that_draws_random_numbers_is_done_again(flash: str) -> None:
    """Left out, it would leave its random numbers to the dropout after it."""
    operation = getattr(torch.ops.aten, flash).default
    place = [argument.name for argument in operation._schema.arguments].index("dropout_p")
    before = [None] * place
    keep, again = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    assert _policy(None, operation, *before, 0.0) is keep
    assert _policy(None, operation, *before) is keep
    assert _policy(None, operation, *before, 0.1) is again
    assert _policy(None, operation, *before, dropout_p=0.1) is again
