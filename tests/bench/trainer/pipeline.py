"""How fast the data pipeline is on one core: text to tokens on disk, tokens on disk to batches."""

import time
from pathlib import Path

from tests.bench.report import Figure
from tests.trainer.gang import Gang
from tests.trainer.runs import Recorder, configuration

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.prepare import prepare
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

SEQUENCE = 1024
_SECONDS = 3.0


def measure(gang: Gang, text: Path, directory: Path) -> list[Figure]:
    """Tokens per second and core of both halves of the pipeline."""
    figures = []
    for kind in ("byte", "bpe"):
        config = _config(text, directory / kind, kind)
        tokens, seconds = gang.results(1, _tokenise, config)[0]
        figures.append(
            Figure(
                f"text to tokens, tokenizer {kind}",
                f"{tokens / seconds / 1e6:.2f} M tokens/s",
                "once a run; bpe trains its tokenizer in this time too",
            )
        )
    rate = gang.results(1, _read, _config(text, directory / "byte", "byte"))[0]
    figures.append(
        Figure(
            "tokens on disk to packed batches",
            f"{rate / 1e6:.1f} M tokens/s",
            "goal 1 M tokens/s a core",
        )
    )
    return figures


def _config(text: Path, checkpoints: Path, kind: str) -> TrainerConfig:
    return configuration(
        text,
        checkpoints,
        data={"sequenceLength": SEQUENCE, "tokenizer": {"kind": kind}},
        training={"globalBatchSize": 8, "microBatchSize": 8},
    )


def _tokenise(_world: World, config: TrainerConfig) -> tuple[int, float]:
    began = time.perf_counter()
    ready = prepare(config)
    seconds = time.perf_counter() - began
    return ready.training(config.data, config.training.seed)[0].tokens, seconds


def _read(world: World, config: TrainerConfig) -> float:
    data = build(config, world, Recorder(world.rank))[0].data
    size = config.training.global_batch_size
    consumed, tokens, began = 0, 0, time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        for batch in data.micro_batches(consumed, size):
            tokens += batch.inputs.numel()
        consumed += size
    return tokens / (time.perf_counter() - began)
