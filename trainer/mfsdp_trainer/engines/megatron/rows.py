"""LoRA adapters that Megatron FSDP cannot divide between rows, refused before it tries.

The package cuts at multiples of a common width of a buffer's parameters. What is smaller than that
width is laid end to end, and a cut may then fall inside a row: it fails on the ranks beside the
cut, while the others wait for them.
"""

import math

from torch import nn

from mfsdp_trainer.errors import ConfigError

_ADAPTER = ".lora_"


def require_whole_rows(model: nn.Module) -> None:
    """Raises ConfigError where a cut may fall inside an adapter's row."""
    adapters = [p for name, p in model.named_parameters() if _ADAPTER in name]
    width = math.lcm(*(adapter.shape[1:].numel() for adapter in adapters))
    small = [adapter for adapter in adapters if adapter.numel() < width]
    rows = math.lcm(*(adapter.shape[1:].numel() for adapter in small))
    if any(adapter.numel() % rows for adapter in small):
        raise ConfigError(
            "model.lora.rank: Megatron FSDP cannot divide adapters of this rank between rows: "
            "choose a larger power of two, dataParallelShardingStrategy no_shard, or "
            "useTorchFSDP2 in place of useMegatronFSDP"
        )
