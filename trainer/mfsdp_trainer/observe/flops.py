"""How much arithmetic a token takes, and how much of it a device can do: what MFU is made of.

The usual count (PaLM appendix B, torchtitan): 6 FLOPs for each weight that a token meets, two
forward and four backward, and 12 x layers x heads x head size x length for attention. What
activation recompute does again is not counted, nor what a causal mask saves.
"""

from collections.abc import Iterator
from typing import Final

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

_TRAINED: Final = 6
_FROZEN: Final = 4
"""Forward, and the gradient that passes through: a frozen weight has none of its own."""

# Dense bf16 TFLOP/s by the maker's data sheets; the first name that is part of the device's counts.
_PEAKS: Final = (
    ("GB300", 2500.0),
    ("GB200", 2500.0),
    ("B300", 2250.0),
    ("B200", 2250.0),
    ("H200 NVL", 835.0),
    ("H200", 989.0),
    ("GH200", 989.0),
    ("H100 NVL", 835.0),
    ("H100 PCIe", 756.0),
    ("H100", 989.0),
    ("H800", 989.0),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A40", 149.7),
    ("A30", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("MI355X", 2500.0),
    ("MI325X", 1307.0),
    ("MI300X", 1307.0),
    ("MI250X", 383.0),
)


def flops_per_token(model: PreTrainedModel, length: int) -> float:
    """Model FLOPs of training on one token of a sequence of `length`.

    Frozen weights (requires_grad False, as under LoRA) count for less, and of experts only those
    that a token is sent to. Call it before an engine lays the parameters out.
    """
    weights = sum(
        (_TRAINED if parameter.requires_grad else _FROZEN) * used
        for parameter, used in _matrices(model)
    )
    return weights + sum(_attention(model.config, length))


def _matrices(model: PreTrainedModel) -> Iterator[tuple[nn.Parameter, float]]:
    """Each weight that is multiplied with, and how many of its numbers a token meets."""
    head = model.get_output_embeddings()
    looked_up = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    if head is not None:
        looked_up.discard(id(head.weight))  # tied: looked up, and multiplied with as the head
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and id(parameter) not in looked_up:
            yield parameter, parameter.numel() * _share(model.config, name)


def _share(config: PreTrainedConfig, name: str) -> float:
    """The part of a weight that one token meets: below one for routed experts."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    experts = experts or getattr(config, "n_routed_experts", None)
    chosen = getattr(config, "num_experts_per_tok", None)
    if ".experts." not in name or not experts or not chosen:
        return 1.0
    return float(chosen / experts)


def _attention(config: PreTrainedConfig, length: int) -> Iterator[float]:
    """FLOPs of each layer's scores and sums for one token."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return  # no attention
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys = getattr(config, "qk_head_dim", None) or size
    values = getattr(config, "v_head_dim", None) or size
    for seen in _lengths(config, length):
        yield 6.0 * heads * (keys + values) * seen


def _lengths(config: PreTrainedConfig, length: int) -> list[int]:
    """How far each layer looks back: the whole sequence, or its sliding window."""
    window = getattr(config, "sliding_window", None) or length
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    limits = {"sliding_attention": min(window, length), "full_attention": length}
    # Layers of other kinds (linear attention) cost nothing that grows with the length.
    return [limits[kind] for kind in kinds if kind in limits]


def peak_flops(device_name: str, tflops: float | None = None) -> float | None:
    """FLOP/s of one device in dense bf16: as given, else by its name; None where unknown."""
    if tflops is not None:
        return tflops * 1e12
    return next((peak * 1e12 for name, peak in _PEAKS if name in device_name), None)
