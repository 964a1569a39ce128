"""How long checkpoints hold a run up: in the background against waited for; there and back.

On two ranks, in a directory on the disk that is to be measured.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.report import Figure
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, configuration

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.loop import Loop
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

MODEL = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
"""36 M parameters: 430 MB of weights and optimizer state."""
SAVES = 3


@dataclass(frozen=True)
class Seconds:
    """Medians over saves, and the size of one."""

    bytes: int
    """Of one checkpoint."""
    synced: float
    """The loop stands still for a save that it waits for, until all is durable."""
    blocked: float
    """The same for one in the background."""
    step: float
    """A step while nothing is saved."""
    step_meanwhile: float
    """A step while a save runs."""
    restored: float
    """Reading it back: checksums, then tensors."""


def measure(gang: Gang, text: Path, directory: Path) -> list[Figure]:
    """The standstill, the slowdown, and both rates."""
    seconds: Seconds = gang.results(2, _measure, _config(text, directory))[0]
    gigabytes = seconds.bytes / 1e9
    return [
        Figure(
            "save in the background: the loop stands still",
            f"{seconds.blocked:.3f} s, {seconds.blocked / seconds.synced:.3f} of a synced save",
            f"goal 0.1; synced {seconds.synced:.2f} s for {gigabytes:.2f} GB",
        ),
        Figure(
            "steps meanwhile",
            f"{seconds.step_meanwhile / seconds.step - 1:+.0%}",
            f"a step alone {seconds.step * 1e3:.0f} ms",
        ),
        Figure("save, synced", f"{gigabytes / seconds.synced:.2f} GB/s", "until durable on disk"),
        Figure(
            "restore", f"{gigabytes / seconds.restored:.2f} GB/s", "checksums verified, page cache"
        ),
    ]


def _config(text: Path, path: Path) -> TrainerConfig:
    return configuration(
        text,
        path,
        strategy="optim_grads_params",
        ranks=2,
        model={"config": MODEL},
        training={"steps": 1000},
        data={"sources": [{"path": str(text)}], "sequenceLength": 64},
    )


def _measure(world: World, config: TrainerConfig) -> Seconds:
    """On every rank, in a directory without checkpoints; rank 0's figures count."""
    waiting = config.model_copy(
        update={"checkpoint": config.checkpoint.model_copy(update={"asynchronous": False})}
    )
    loop, _ = build(waiting, world, Recorder(world.rank))
    position = _steps(loop, Position(step=0, consumed=0), 3)[0]
    synced = [_save(loop, position) for _ in range(SAVES)]
    del loop
    loop, _ = build(config, world, Recorder(world.rank))
    position, alone = _steps(loop, Position(step=0, consumed=0), 12)
    _save(loop, position)
    loop.checkpoints.finish()  # the first one makes the memory of the copy
    blocked, meanwhile = [], []
    for _ in range(SAVES):
        world.barrier()
        blocked.append(_save(loop, position))
        while not _published(loop, world):
            position, seconds = _steps(loop, position, 1)
            meanwhile += seconds
    begun = time.monotonic()
    loop.checkpoints.resume(loop.engine)
    restored = time.monotonic() - begun
    newest = next(Path(config.checkpoint.path).glob("step-*"))
    return Seconds(
        bytes=sum(file.stat().st_size for file in newest.iterdir()),
        synced=median(synced),
        blocked=median(blocked),
        step=median(alone[2:]),
        step_meanwhile=median(meanwhile),
        restored=restored,
    )


def _save(loop: Loop, position: Position) -> float:
    """Seconds that the loop stands still."""
    begun = time.monotonic()
    loop.checkpoints.begin(loop.engine, position)
    return time.monotonic() - begun


def _published(loop: Loop, world: World) -> bool:
    """Whether it is on all ranks: they must take the same number of steps."""
    (done,) = world.sum([not loop.checkpoints.busy])
    return done == world.size


def _steps(loop: Loop, position: Position, count: int) -> tuple[Position, list[float]]:
    seconds = []
    for _ in range(count):
        begun = time.monotonic()
        position, _ = loop.advance(position)
        seconds.append(time.monotonic() - begun)
    return position, seconds
