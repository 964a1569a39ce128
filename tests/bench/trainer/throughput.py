"""The trainer's loop against a bare one: same model, engine and loss, the data in memory.

Both loops take turns in the same processes, a step each, so that what disturbs the machine
disturbs both.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from tests.bench.report import Figure
from tests.bench.stats import paired_ratio, percentile
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, configuration

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.batches import MicroBatch
from mfsdp_trainer.engines import Engine
from mfsdp_trainer.loop import Loop
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

GOAL = 0.98
SEQUENCE = 256
MODEL = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": SEQUENCE,
}


@dataclass
class Times:
    """Seconds of each step, on rank 0."""

    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


def bench_config(text: Path, checkpoints: Path, *, strategy: str, steps: int) -> TrainerConfig:
    """Two ranks, two micro-batches a step, a step of about half a second a core."""
    return configuration(
        text,
        checkpoints,
        strategy=strategy,
        ranks=2,
        model={"config": MODEL},
        data={"sequenceLength": SEQUENCE},
        training={"steps": steps, "globalBatchSize": 8, "microBatchSize": 2, "warmupSteps": 2},
    )


def measure(gang: Gang, text: Path, directory: Path, *, strategy: str, pairs: int) -> list[Figure]:
    """Tokens per second of one engine, and its ratio to the bare loop's."""
    config = bench_config(text, directory, strategy=strategy, steps=pairs + 2)
    times = gang.results(2, _paired_steps, config, pairs)[0]
    tokens = config.training.global_batch_size * SEQUENCE
    typical = percentile(times.ours, 50)
    return [
        Figure(
            f"{strategy}: tokens/s against a bare loop's",
            str(paired_ratio(times.ours, times.bare)),
            f"goal {GOAL}, limit 1",
        ),
        Figure(
            f"{strategy}: step time, p50 and p99",
            f"{typical * 1e3:.0f} and {percentile(times.ours, 99) * 1e3:.0f} ms",
            f"{tokens / typical:,.0f} tokens/s on 2 ranks, {len(times.ours)} steps",
        ),
    ]


def _paired_steps(world: World, config: TrainerConfig, pairs: int) -> Times:
    ours = _loop(config, world)
    bare = _loop(config, world)
    batches = bare.data.micro_batches(0, config.training.global_batch_size)
    position = Position(step=0, consumed=0)
    times = Times()
    for number in range(pairs + 2):
        seconds = {}
        # By turns the first of a pair: what one leaves in the caches helps or hinders the other.
        for turn in ("ours", "bare")[:: 1 if number % 2 else -1]:
            began = _together()
            if turn == "ours":
                position, _ = ours.advance(position)
            else:
                _bare_step(bare.engine, batches, config, world)
            seconds[turn] = _together() - began
        if number >= 2:  # the first ones allocate
            times.ours.append(seconds["ours"])
            times.bare.append(seconds["bare"])
    return times


def _loop(config: TrainerConfig, world: World) -> Loop:
    return build(config, world, Recorder(world.rank))[0]


def _together() -> float:
    dist.barrier()
    return time.perf_counter()


def _bare_step(
    engine: Engine, batches: list[MicroBatch], config: TrainerConfig, world: World
) -> None:
    """What no loop can do without: forward, backward, clip, update."""
    tokens = sum(batch.tokens for batch in batches) * world.size
    for number, batch in enumerate(batches, start=1):
        with engine.micro_batch(last=number == len(batches)):
            engine.loss(batch, world.size / tokens).backward()
    engine.clip(config.training.clip_grad_norm)
    engine.step(config.training.learning_rate)
