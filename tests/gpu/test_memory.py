"""What each strategy holds between two steps: bytes a parameter, as its name promises."""

from pathlib import Path

import pytest
from tests.gpu.runs import BUSY, busy, cost
from tests.trainer.gang import Gang

# Bytes a parameter: (whole on every rank, divided by the ranks). Masters and Adam are 12 always.
# Megatron FSDP keeps bf16 weights and fp32 gradients beside them.
BYTES = {
    ("ddp", "ddp"): (16, 0),
    ("fsdp2", "optim"): (0, 12),
    ("fsdp2", "optim_grads"): (0, 12),
    ("fsdp2", "optim_grads_params"): (0, 12),
    ("megatron", "no_shard"): (18, 0),
    ("megatron", "optim"): (6, 12),
    ("megatron", "optim_grads"): (2, 16),
    ("megatron", "optim_grads_params"): (0, 18),
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("engine", "strategy"), BYTES)
def test_at_rest(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str, strategy: str, ranks: int
) -> None:
    config = busy(text_file, tmp_path, engine, strategy, ranks)
    whole, divided = BYTES[engine, strategy]
    for found in gang.results(ranks, cost, config):
        wanted = found.parameters * (whole + divided / ranks)
        print(
            f"\n{engine} {strategy} x{ranks}: {found.rest / wanted:.3f} of the sum of its shards "
            f"at rest, peak {found.peak / 2**30:.2f} GiB, {found.tokens_per_second:,.0f} tokens/s"
        )
        assert found.rest < 1.1 * wanted + 2**26
        if strategy == "optim_grads_params":
            # Two units of weights and gradients, activations of one sequence, a chunk of logits.
            unit = 12 * BUSY["vocab_size"] * BUSY["hidden_size"]
            assert found.peak - found.rest < 2 * unit + 2**32
