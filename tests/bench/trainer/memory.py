"""What a rank holds: model states between steps, and what a step needs beside them.

Bytes of the storages that are alive, which is what a GPU's allocator would count, on two ranks
under every engine and strategy.
"""

import gc
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from tests.bench.report import Figure
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import megatron, on_cpu
from tests.trainer.memory import Live
from tests.trainer.runs import TINY, Recorder, configuration

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import ShardingStrategy, TrainerConfig
from mfsdp_trainer.inspection.model import inspect
from mfsdp_trainer.models import loss
from mfsdp_trainer.plan import gpus
from mfsdp_trainer.plan.memory import Memory
from mfsdp_trainer.plan.report import report
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

WIDTH = 16
VOCABULARY = 65_536
MODEL = {**TINY, "vocab_size": VOCABULARY, "hidden_size": WIDTH}
"""Embedding and head are nearly all of it: each is a unit."""
UNIT = VOCABULARY * WIDTH * 4
CHUNK = 2**20
"""Logits that exist at a time, of 2**21 and more in a micro-batch."""
GOAL = 1.1
WAYS = [
    ("ddp", "ddp"),
    *product(("torch_fsdp2", "megatron_fsdp"), map(str, ShardingStrategy)),
]


@dataclass(frozen=True)
class Held:
    """Bytes of one rank."""

    rest: int
    """Between two steps."""
    peak: int
    """The most in a step."""


def measure(gang: Gang, text: Path, directory: Path) -> list[Figure]:
    """Two rows for each way to shard."""
    facts = None
    figures = []
    for engine, strategy in WAYS:
        config = _config(text, directory / engine / strategy, engine, strategy)
        facts = facts or inspect(config)
        plan = report(config, facts, gpus.named(gpus.DEFAULT)).chosen.memory
        held = _held(gang, config)
        figures += _figures(f"{engine} {strategy}" if engine != "ddp" else engine, held, plan)
    return figures


def _figures(name: str, held: Held, plan: Memory) -> list[Figure]:
    # What DDP and Megatron FSDP reduce gradients in is there all the time.
    shards = plan.parameters + plan.optimizer + (0 if "fsdp2" in name else plan.gradients)
    bound = f"activations, two units and a chunk of logits: {_mb(2 * UNIT + 4 * CHUNK)}"
    return [
        Figure(
            f"{name}: states between steps",
            f"{_mb(held.rest)}, {held.rest / shards:.3f} of what it keeps",
            f"goal {GOAL} of {_mb(shards)}",
        ),
        Figure(
            f"{name}: most in a step, over that",
            _mb(held.peak - held.rest),
            bound if name.endswith("optim_grads_params") else "weights or gradients are whole",
        ),
    ]


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _config(text: Path, path: Path, engine: str, strategy: str) -> TrainerConfig:
    if engine == "megatron_fsdp":
        return megatron(text, path, strategy, ranks=2, model={"config": MODEL})
    return configuration(text, path, strategy=strategy, ranks=2, model={"config": MODEL})


def _held(gang: Gang, config: TrainerConfig) -> Held:
    if config.use_megatron_fsdp:
        found = gang.results(2, on_cpu, _steps, config)
    else:
        found = gang.results(2, _steps, config)
    return max(found, key=lambda rank: rank.rest)


def _steps(world: World, config: TrainerConfig) -> Held:
    """Two steps, of which the second is looked at."""
    gc.collect()
    with pytest.MonkeyPatch.context() as patch, Live() as live:
        patch.setattr(loss, "CHUNK", CHUNK)
        loop, _ = build(config, world, Recorder(world.rank))
        position, _ = loop.advance(Position(step=0, consumed=0))
        live.watch_again()
        loop.advance(position)
        return Held(rest=live.start, peak=live.peak)
