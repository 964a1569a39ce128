"""How fast a run goes: from tokens and seconds to tokens/s, a rank's share, and MFU."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from mfsdp_trainer.config import TrainerConfig

from .flops import flops_per_token, peak_flops


@dataclass(frozen=True)
class Scale:
    """What tokens/s are measured against."""

    ranks: int
    unit: str
    """What a rank is to a person: GPU, or process."""
    flops_per_token: float = 0.0
    peak_flops: float | None = None
    """FLOP/s of one rank's device, if it is known."""

    @classmethod
    def of(cls, config: TrainerConfig, model: PreTrainedModel, ranks: int) -> "Scale":
        """The scale of a run; `model` as it is before an engine takes it."""
        flops = flops_per_token(model, config.data.sequence_length)
        if not config.gpus_per_node:
            return cls(ranks, "process", flops)
        name = torch.cuda.get_device_name()
        return cls(ranks, "GPU", flops, peak_flops(name, config.logging.peak_tflops))

    def mfu(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilisation, 1 for a device that does nothing but multiply."""
        if self.peak_flops is None:
            return None
        return tokens_per_second / self.ranks * self.flops_per_token / self.peak_flops
