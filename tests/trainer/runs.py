"""What tests run on the ranks of a gang: whole training runs, and parts of them."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.trainer.gang import ON_GPU
from torch.distributed.tensor import DTensor

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.errors import TrainerError
from mfsdp_trainer.reporting import Reporter
from mfsdp_trainer.run import train
from mfsdp_trainer.world import World

LENGTH = 32
BATCH = 12
"""Sequences of a step: 1, 2 or 4 ranks and 1 or 3 micro-batches divide it."""
SLACK = 20 if ON_GPU else 1
"""Times that tolerances are wider: the reference is computed on the CPU, whose sums have another
order."""

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def configuration(
    text: Path,
    checkpoints: Path,
    *,
    strategy: str = "ddp",
    ranks: int = 1,
    micro_batches: int = 1,
    **changes: Any,
) -> TrainerConfig:
    """A small run. `strategy` is ddp or one of FSDP2's; `changes` are sections to overlay."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"config": TINY},
        "data": {
            "sources": [{"path": str(text)}],
            "sequenceLength": LENGTH,
            "validationFraction": 0,
        },
        "training": {
            "steps": 6,
            "globalBatchSize": BATCH,
            "microBatchSize": BATCH // ranks // micro_batches,
            "learningRate": 1e-2,
            "minLearningRate": 1e-3,
            "warmupSteps": 2,
            "precision": "fp32",
        },
        "checkpoint": {"path": str(checkpoints), "export": False},
    }
    for name, change in changes.items():
        sections[name] = change if name == "model" else {**sections.get(name, {}), **change}
    if sections["training"].get("schedule") == "constant":
        del sections["training"]["minLearningRate"]  # it has no end to fall to
    sharding: dict[str, Any] = {}
    if strategy != "ddp":
        sharding = {"useTorchFSDP2": True, "dataParallelShardingStrategy": strategy}
    gpus = ranks if ON_GPU else 0
    top = {"nodes": 1, "procsPerNode": ranks, "gpusPerNode": gpus, **sharding}
    return TrainerConfig.model_validate(top | sections, by_alias=True, by_name=False)


class Recorder(Reporter):
    """A reporter that keeps what it is told, and asks to stop after a given step."""

    def __init__(self, rank: int, stop_after: int | None = None) -> None:
        super().__init__(None, rank)
        self.told: list[dict[str, Any]] = []
        self._stop_after = stop_after
        self._beats_seen = 0

    def progress(self, **fields: Any) -> None:
        super().progress(**fields)
        self.told.append(fields)

    @property
    def stop_requested(self) -> bool:
        # Asked while the last wanted step runs, by one rank alone: the others must follow it.
        return self.rank == 0 and self._step == self._wanted

    @property
    def _wanted(self) -> int | None:
        if self._stop_after is None:
            return -1
        return None if self._stop_after == 1 else self._stop_after - 1


@dataclass
class Result:
    """What a run came to on one rank."""

    steps: list[tuple[int, float, float]] = field(default_factory=list)
    """Step, loss and gradient norm."""
    evaluations: list[float] = field(default_factory=list)
    resumed_from: int | None = None
    warnings: list[str] = field(default_factory=list)
    error: TrainerError | None = None


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run_training(world: World, config: TrainerConfig, stop_after: int | None = None) -> Result:
    """A whole run, with the TrainerError that ended it, if one did."""
    recorder = Recorder(world.rank, stop_after)
    handler = _Warnings()
    logger = logging.getLogger("mfsdp_trainer")
    logger.addHandler(handler)
    result = Result(warnings=handler.texts)
    try:
        train(config, world, recorder)
    except TrainerError as error:
        error.__traceback__ = None
        error.__cause__ = None
        result.error = error
    finally:
        logger.removeHandler(handler)
    for told in recorder.told:
        if "loss" in told:
            result.steps.append((told["step"], told["loss"], told["grad_norm"]))
        if "eval_loss" in told:
            result.evaluations.append(told["eval_loss"])
        result.resumed_from = told.get("resumed_from_step", result.resumed_from)
    return result


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor of a DTensor or a plain one."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
