"""What a rank holds: at its start little more than its shard, in a step two units and a chunk."""

import ctypes
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.gang import Gang
from tests.trainer.megatron.runs import megatron, on_cpu
from tests.trainer.memory import Live
from tests.trainer.runs import TINY, Recorder, configuration
from transformers import AutoConfig, AutoModelForCausalLM

from mfsdp_trainer.checkpoint import Position
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.models import loss as module
from mfsdp_trainer.run import build
from mfsdp_trainer.world import World

MIB = 2**20
LARGE: dict[str, Any] = {
    **TINY,
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
}
"""184 MiB in fp32, of which 14 are a layer."""


VOCABULARY = 65_536
CHUNK = 2**20


class _Watch:
    """The most anonymous memory of this process at any moment of a block, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._end.wait(0.01):
            self.most = max(self.most, _anonymous())

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _anonymous() -> int:
    """What is the process's own; files that are mapped are the page cache's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def _give_back_what_is_freed() -> None:
    """Have malloc map every block of 64 KiB and more, so that freeing it is seen.

    By itself it keeps freed blocks of up to 32 MiB: a whole model may lie in what is left of
    tensors that are gone.
    """
    mmap_threshold = -3  # M_MMAP_THRESHOLD of malloc.h
    assert ctypes.CDLL(None).mallopt(mmap_threshold, 65_536) == 1


def started(world: World, config: TrainerConfig, small: TrainerConfig) -> tuple[int, int]:
    """Bytes of the model, and at the peak of its start over what was there before."""
    _give_back_what_is_freed()
    # What libraries allocate once shall not be counted.
    build(small, world, Recorder(world.rank))
    before = _anonymous()
    with _Watch() as watch:
        loop, _ = build(config, world, Recorder(world.rank))
    engine: Any = loop.engine
    size = sum(4 * parameter.numel() for parameter in engine._model.parameters())
    return size, watch.most - before


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["fsdp2", "megatron"])
@pytest.mark.parametrize("source", ["path", "seed"])
def test_a_start_holds_the_shard_and_little_more(
    gang: Gang, text_file: Path, tmp_path: Path, engine: str, source: str
) -> None:
    model: dict[str, Any] = {"config": LARGE}
    if source == "path":
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LARGE))
        theirs.save_pretrained(tmp_path / "model", max_shard_size="64MB")
        del theirs
        model = {"path": str(tmp_path / "model")}
    make = megatron if engine == "megatron" else configuration
    choice: dict[str, Any] = {"strategy": "optim_grads_params", "ranks": 4}
    config = make(text_file, tmp_path, model=model, **choice)
    small = make(text_file, tmp_path, **choice)
    for size, peak in gang.results(4, on_cpu, started, config, small):
        shard = size / 4
        # Megatron FSDP's gradients have memory from the start on, and its buffers are filled from
        # one more set of shards: three of the four that it holds as it trains.
        sets = 3 if engine == "megatron" else 1
        assert peak < (sets + 0.25) * shard + 8 * MIB < size


def held(world: World, config: TrainerConfig) -> tuple[int, int, int]:
    """Bytes at rest, at the peak of the second step, and of its largest tensor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", CHUNK)
        loop, _ = build(config, world, Recorder(world.rank))
        position, _ = loop.advance(Position(step=0, consumed=0))
        state = loop.engine.state()
        slots = [tensor for entry in state["optimizer"].values() for tensor in entry.values()]
        with Live(*state["model"].values(), *slots) as live:
            loop.advance(position)
    return live.start, live.peak, live.largest


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_holds_two_units_and_a_chunk_of_logits(
    gang: Gang, text_file: Path, tmp_path: Path, precision: str
) -> None:
    """Of a vocabulary of 64k: 6 sequences of 32 would have 48 MiB of logits, and their gradient."""
    config = configuration(
        text_file,
        tmp_path,
        strategy="optim_grads_params",
        ranks=2,
        model={"config": {**TINY, "vocab_size": VOCABULARY, "hidden_size": 16}},
        training={"precision": precision},
    )
    unit, chunk, activations = VOCABULARY * 16 * 4, CHUNK * 4, 2**20
    for start, peak, largest in gang.results(2, held, config):
        assert largest <= max(unit, chunk)
        assert peak - start <= 2 * unit + chunk + activations
