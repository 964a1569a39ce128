"""Runs on GPUs: a model that keeps one busy, and what a run of it costs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.trainer.megatron.runs import megatron
from tests.trainer.runs import Recorder, configuration

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.performance import PerformanceConfig
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

BUSY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
"""240 M parameters."""
LENGTH = 2048
STEPS = 8
WARM = 3


@dataclass(frozen=True)
class Cost:
    """What one rank saw."""

    losses: list[float]
    tokens_per_second: float
    """Of this rank, after the first steps."""
    rest: int
    """Bytes allocated between two steps, over what was there before the run."""
    peak: int
    parameters: int


def busy(
    text: Path, path: Path, engine: str, strategy: str, ranks: int, **performance: Any
) -> TrainerConfig:
    """A run in bf16 of one sequence a rank and micro-batch, two of them a step."""
    recompute = performance.pop("recompute", "none")
    choice: dict[str, Any] = {
        "ranks": ranks,
        "model": {"config": BUSY},
        "data": {"sequenceLength": LENGTH},
        "training": {
            "steps": STEPS,
            "globalBatchSize": 2 * ranks,
            "microBatchSize": 1,
            "precision": "bf16",
            "recompute": recompute,
            "learningRate": 3e-4,
            "minLearningRate": 0,
        },
    }
    make = megatron if engine == "megatron" else configuration
    config = make(text, path, strategy=strategy, **choice)
    chosen = PerformanceConfig.model_validate(performance, by_alias=True, by_name=False)
    return config.model_copy(update={"performance": chosen})


def cost(world: World, config: TrainerConfig) -> Cost:
    """Train, and measure."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    recorder = Recorder(world.rank)
    loop, _ = build(config, world, recorder)
    position = Position(step=0, consumed=0)
    start = 0.0
    for step in range(STEPS):
        if step == WARM:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            start = time.perf_counter()
        position, _ = loop.advance(position)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    engine: Any = loop.engine
    tokens = (STEPS - WARM) * 2 * LENGTH
    return Cost(
        losses=[told["loss"] for told in recorder.told if "loss" in told],
        tokens_per_second=tokens / seconds,
        rest=torch.cuda.memory_allocated() - before,
        peak=torch.cuda.max_memory_allocated() - before,
        parameters=sum(parameter.numel() for parameter in engine._model.parameters()),
    )
