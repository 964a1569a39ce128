"""How long saves hold a run up: what `make bench-trainer` shows, and by hand

python -m tests.trainer.checkpoint_figures DIRECTORY

on two ranks. DIRECTORY must be on the disk that is to be measured.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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
class Figures:
    """Seconds are medians over saves."""

    bytes: int
    """Of one checkpoint."""
    synced: float
    """How long the loop stands still for a save that it waits for, until all is durable."""
    blocked: float
    """The same for one in the background."""
    step: float
    """A step while nothing is saved."""
    step_meanwhile: float
    """A step while a save runs."""
    background: float
    """From the end of the standstill until the checkpoint is published."""
    restored: float
    """Reading it back: checksums, then tensors."""

    def __str__(self) -> str:
        gigabytes = self.bytes / 1e9
        return (
            f"checkpoint {gigabytes:.2f} GB: loop stands still {self.blocked:.3f} s in the "
            f"background, {self.synced:.3f} s synced: {self.blocked / self.synced:.3f} (goal 0.1); "
            f"steps {self.step_meanwhile / self.step - 1:+.0%} meanwhile; save "
            f"{gigabytes / self.synced:.2f} GB/s, restore {gigabytes / self.restored:.2f} GB/s"
        )


def figures_config(text: Path, path: Path, ranks: int = 2) -> TrainerConfig:
    """What `measure` trains."""
    return configuration(
        text,
        path,
        strategy="optim_grads_params",
        ranks=ranks,
        model={"config": MODEL},
        training={"steps": 1000},
        data={"sources": [{"path": str(text)}], "sequenceLength": 64},
    )


def measure(world: World, config: TrainerConfig) -> Figures:
    """On every rank of a world, in a directory without checkpoints; rank 0's figures count."""
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
    blocked, background, meanwhile = [], [], []
    for _ in range(SAVES):
        world.barrier()
        blocked.append(_save(loop, position))
        begun = time.monotonic()
        while not _published(loop, world):
            position, seconds = _steps(loop, position, 1)
            meanwhile += seconds
        background.append(time.monotonic() - begun)
    begun = time.monotonic()
    loop.checkpoints.resume(loop.engine)
    restored = time.monotonic() - begun
    newest = next(Path(config.checkpoint.path).glob("step-*"))
    return Figures(
        bytes=sum(file.stat().st_size for file in newest.iterdir()),
        synced=median(synced),
        blocked=median(blocked),
        step=median(alone[2:]),
        step_meanwhile=median(meanwhile),
        background=median(background),
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


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    text = directory / "text.txt"
    text.write_text("".join(f"line {n}: {n * n} is {n} squared.\n" for n in range(4000)))
    gang = Gang(2)
    print(gang.results(2, measure, figures_config(text, directory / "run"))[0])
    gang.stop()
