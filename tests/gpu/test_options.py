"""Options that only a GPU can have: the same losses, and what they gain."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.runs import Cost, busy, cost
from tests.trainer.gang import Gang

SHARDED = "optim_grads_params"
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("megatron", {"separateGatherGroup": True}),
    ("megatron", {"doubleBuffer": True}),
    ("megatron", {"ncclUserBuffers": True}),
    ("megatron", {"ncclUserBuffers": True, "separateGatherGroup": True}),
    ("fsdp2", {"prefetchLayers": 2}),
    *(
        (engine, option)
        for engine in ("ddp", "fsdp2", "megatron")
        for option in (
            {"compile": True},
            {"attention": "flash_attention_2"},
            {"attention": "flex_attention"},
            {"recompute": "full"},
            {"recompute": "selective"},
            {"compile": True, "recompute": "selective"},
        )
    ),
]
Costs = dict[tuple[str, int], Cost]


@pytest.fixture(scope="module")
def plain() -> Costs:
    """Costs without any option, as they become known."""
    return {}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("engine", "option"), OPTIONS, ids=str)
def test_option_keeps_the_losses(
    gang: Gang,
    plain: Costs,
    text_file: Path,
    tmp_path: Path,
    engine: str,
    option: dict[str, Any],
    ranks: int,
) -> None:
    flash = option.get("attention") == "flash_attention_2"
    if flash and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("the flash-attn package is not installed")
    strategy = "ddp" if engine == "ddp" else SHARDED
    key = (engine, ranks)
    if key not in plain:
        config = busy(text_file, tmp_path / "plain", engine, strategy, ranks)
        plain[key] = gang.results(ranks, cost, config)[0]
    config = busy(text_file, tmp_path / "option", engine, strategy, ranks, **option)
    found, wanted = gang.results(ranks, cost, config)[0], plain[key]
    print(
        f"\n{engine} x{ranks} {option}: {found.tokens_per_second:,.0f} tokens/s a GPU, without it "
        f"{wanted.tokens_per_second:,.0f}; peak {found.peak / 2**30:.2f} GiB, without it "
        f"{wanted.peak / 2**30:.2f}"
    )
    assert found.losses == pytest.approx(wanted.losses, abs=2e-2)
    if option.get("recompute"):
        assert found.peak < wanted.peak
