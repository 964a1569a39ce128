"""What models make of their head's output is found out from their own code, or not relied on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mfsdp_trainer.models import loss as module
from mfsdp_trainer.models.architecture import build_meta
from mfsdp_trainer.models.head import end_in_loss, way_of
from mfsdp_trainer.models.loss import IGNORE, PLAIN, Tail

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
SCALED = {"model_type": "granite", "logits_scaling": 8.0}
KINDS: list[tuple[dict[str, Any], Tail | None]] = [
    ({"model_type": "llama"}, PLAIN),
    ({"model_type": "llama", "tie_word_embeddings": True}, PLAIN),
    ({"model_type": "qwen3"}, PLAIN),
    ({"model_type": "qwen3_moe", **MIXTURE}, PLAIN),
    ({"model_type": "mistral"}, PLAIN),
    ({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2}, PLAIN),
    # a body inside of what transformers names the body
    ({"model_type": "opt", "ffn_dim": 24, "word_embed_proj_dim": 16}, PLAIN),
    # a head with a bias
    ({"model_type": "phi"}, PLAIN),
    ({"model_type": "gemma2", "final_logit_softcapping": 3.0}, Tail(1.0, 3.0)),
    ({"model_type": "gemma2", "final_logit_softcapping": None}, PLAIN),
    ({"model_type": "gemma3_text", "final_logit_softcapping": 3.0}, Tail(1.0, 3.0)),
    (SCALED, Tail(0.125)),
    ({"model_type": "cohere", "logit_scale": 0.0625}, Tail(0.0625)),
]
IDS = [str(settings["model_type"]) for settings, _ in KINDS]


def settings_of(kind: dict[str, Any]) -> Any:
    return AutoConfig.for_model(**{**SMALL, **kind})


def labels_for(tokens: Tensor) -> Tensor:
    labels = torch.cat([tokens[:, 1:], torch.full((len(tokens), 1), IGNORE)], dim=1)
    labels[0, 3] = IGNORE
    return labels


def whole_loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """What transformers' model and torch say."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), labels_for(tokens).flatten(), reduction="sum"
    )


def assert_same_numbers(model: PreTrainedModel, *, in_chunks: bool) -> None:
    """The loss, and every gradient, before and after the model ends in its loss."""
    tokens = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    names = [name for name, _ in model.named_parameters()]
    wanted = 0.5 * whole_loss(model, tokens)
    slopes = torch.autograd.grad(wanted, list(model.parameters()))
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    assert end_in_loss(model) is in_chunks
    assert [name for name, _ in model.named_parameters()] == names
    (found,) = model(input_ids=tokens, labels=labels_for(tokens), scale=0.5)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6)
    for name, slope in zip(names, slopes, strict=True):
        grad = model.get_parameter(name).grad
        assert grad is not None, name
        assert torch.allclose(grad, slope, atol=1e-6 * float(slope.abs().max()) + 1e-7), name
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens)[0], logits)


@pytest.mark.parametrize(("kind", "tail"), KINDS, ids=IDS)
def test_a_models_own_way_from_head_to_logits_is_kept(
    monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], tail: Tail
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5 * 61)
    way = way_of(build_meta(settings_of(kind)))
    assert way is not None
    assert way.tail == tail
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(settings_of(kind)).eval()
    # Large logits: a cap that is forgotten must show.
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(50)
    assert_same_numbers(model, in_chunks=True)


def _clamped(logits: Tensor) -> Tensor:
    return logits.clamp(-1, 1)


def _shifted(logits: Tensor) -> Tensor:
    return logits + 0.25 * torch.arange(logits.shape[-1])


def _squared(logits: Tensor) -> Tensor:
    return logits * logits.abs()


@pytest.mark.parametrize("change", [_clamped, _shifted, _squared])
def test_what_is_not_understood_makes_its_logits_whole(
    monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(settings_of({"model_type": "llama"})).eval()
    own = type(model).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = own(self, *args, **kwargs)
        if kwargs.get("return_dict") is False:
            return (change(answer[0]), *answer[1:])
        answer.logits = change(answer.logits)
        return answer

    monkeypatch.setattr(type(model), "forward", forward)
    assert_same_numbers(model, in_chunks=False)


def test_a_head_of_another_kind_makes_its_logits_whole() -> None:
    class Head(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * super().forward(hidden)

    model = AutoModelForCausalLM.from_config(settings_of({"model_type": "llama"})).eval()
    model.lm_head = Head(16, 61, bias=False)
    assert_same_numbers(model, in_chunks=False)


def test_a_factor_beside_a_bias_makes_logits_whole() -> None:
    """Before the head or after it: with a bias that is not the same."""
    model = AutoModelForCausalLM.from_config(settings_of(SCALED)).eval()
    model.lm_head = nn.Linear(16, 61, bias=True)
    assert_same_numbers(model, in_chunks=False)


def test_looking_leaves_the_model_as_it_was() -> None:
    model = build_meta(settings_of({"model_type": "gemma2"}))
    before = [(name, id(child)) for name, child in model.named_modules()]
    way_of(model)
    assert [(name, id(child)) for name, child in model.named_modules()] == before
