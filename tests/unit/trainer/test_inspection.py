"""What is found out about a model without its weights, against the model itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from mfsdp_trainer.config.training import Recompute
from mfsdp_trainer.inspection.parameters import units
from mfsdp_trainer.inspection.work import trace
from mfsdp_trainer.models.architecture import build_meta, parameter_count
from mfsdp_trainer.plan.facts import Compute, UnitKind, WorkFacts

BATCH, LENGTH = 2, 64
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "gemma3": {**LLAMA, "model_type": "gemma3_text", "head_dim": 16, "tie_word_embeddings": True},
    "mixture": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "gpt2": {
        **{"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 4, "n_head": 4},
        # With dropout the attention of a CPU is not a fused one.
        **{f"{place}_pdrop": 0.0 for place in ("attn", "embd", "resid")},
    },
}


def settings(values: dict[str, Any]) -> PreTrainedConfig:
    values = dict(values)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def work(
    values: dict[str, Any],
    compute: Compute = Compute.CAST,
    recompute: Recompute = Recompute.NONE,
    *,
    packed: bool = False,
) -> WorkFacts:
    return trace(
        build_meta(settings(values)),
        batch=BATCH,
        length=LENGTH,
        compute=compute,
        recompute=recompute,
        packed=packed,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_units_hold_every_parameter_once(family: str) -> None:
    model = build_meta(settings(FAMILIES[family]))
    found = units(model)
    assert sum(unit.count * unit.elements() for unit in found) == parameter_count(model)
    assert sum(unit.count for unit in found if unit.kind is UnitKind.LAYER) == 4
    ends = sum(unit.count for unit in found if unit.kind is UnitKind.END)
    assert ends == (2 if family in ("llama", "mixture") else 0)


def saved_bytes(values: dict[str, Any], compute: Compute) -> int:
    """What the forward pass of a real model keeps for its backward pass, without weights."""
    model: Any = AutoModelForCausalLM.from_config(settings(values), dtype=torch.float32)
    if compute is Compute.CAST:
        model.to(torch.bfloat16)
    kept: dict[int, Tensor] = {}
    weights = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.base_model(input_ids=tokens, use_cache=False)
    assert out.last_hidden_state.requires_grad
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in weights)


@pytest.mark.parametrize("compute", [Compute.FP32, Compute.CAST])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_a_real_model_keeps(family: str, compute: Compute) -> None:
    found = work(FAMILIES[family], compute)
    assert found.activations == pytest.approx(saved_bytes(FAMILIES[family], compute), rel=0.1)


def test_activations_are_a_sum_over_layers() -> None:
    """Of a llama layer in bf16, by hand."""
    four, eight = (work({**LLAMA, "num_hidden_layers": n}).activations for n in (4, 8))
    tokens, hidden, inner = BATCH * LENGTH, 64, 160
    norms = 2 * (4 + 2 + 2) * hidden
    attention = (2 + 2 + 2) * hidden  # queries, result; keys and values of half the heads
    wanted = tokens * (norms + attention + 4 * 2 * inner)
    assert (eight - four) / 4 == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("family", ["llama", "mixture"])
def test_recomputed_layers_keep_their_inputs(family: str) -> None:
    layer = BATCH * LENGTH * 64 * 2
    kept, recomputed = work(FAMILIES[family]), work(FAMILIES[family], recompute=Recompute.FULL)
    assert recomputed.activations < 4 * layer + 6 * layer
    assert recomputed.activations < kept.activations / 2
    assert recomputed.peak < kept.peak


def test_autocast_keeps_a_copy_of_the_weights_beside_activations() -> None:
    found = work(LLAMA, Compute.AUTOCAST)
    matrices = sum(
        tensor.elements
        for unit in units(build_meta(settings(LLAMA)))
        if unit.kind is UnitKind.LAYER
        for tensor in unit.tensors
        if tensor.row > 1
        for _ in range(unit.count)
    )
    assert found.weight_copies == 2 * matrices
    assert found.activations > work(LLAMA).activations


def test_the_peak_holds_the_logits() -> None:
    wide = {**LLAMA, "vocab_size": 16_384}
    more = work(wide).peak - work(LLAMA).peak
    assert more >= BATCH * LENGTH * (16_384 - 512) * 4


def test_packed_documents_need_a_mask_in_every_layer() -> None:
    more = work(LLAMA, packed=True).activations - work(LLAMA).activations
    assert more >= 4 * BATCH * LENGTH * LENGTH * 2
