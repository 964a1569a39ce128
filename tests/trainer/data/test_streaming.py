"""Nothing loads a file into memory, and batches come faster than any model takes them."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trainer.data.kit import config, documents, streams

from mfsdp_trainer.config.data import Packing
from mfsdp_trainer.data import text as text_files
from mfsdp_trainer.data.batches import Parts, Share, TrainingData
from mfsdp_trainer.data.order import Shuffled
from mfsdp_trainer.data.stream import Stream
from mfsdp_trainer.data.tokenizer import train_bpe

_MEASURE = """
import resource, sys
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data.prepare import prepare
import mfsdp_trainer.data.megatron
config = TrainerConfig.model_validate_json(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(corpus,) = prepare(config).corpora
print(corpus.facts.train.tokens, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def grown(run: Any) -> tuple[int, float]:
    """Tokens of a run, and MiB of memory that preparing them took, in a process of its own."""
    text = run.model_dump_json(by_alias=True)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, text],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    tokens, kilobytes = done.stdout.split()
    return int(tokens), int(kilobytes) / 1024


def test_a_document_of_200_mb_takes_little_memory(tmp_path: Path) -> None:
    line = "a line of a document that has very many of them\n"
    with (tmp_path / "x.txt").open("w", encoding="utf-8") as stream:
        for _ in range(20):
            stream.write(line * (200_000_000 // 20 // len(line)))
    size = (tmp_path / "x.txt").stat().st_size
    run = config(tmp_path, {"path": str(tmp_path / "x.txt")}, validationFraction=0.01)
    tokens, memory = grown(run)
    assert tokens == size + 1
    assert memory < 60


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_PIECE", 1000)


def test_long_text_has_the_tokens_of_the_whole(tmp_path: Path, small_pieces: None) -> None:
    lines = [f"# number {n}\ndef function_{n}(x):\n    return x * {n}\n\n\n" for n in range(1000)]
    text = "".join(lines)
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    bpe = {"kind": "bpe", "vocabSize": 400}
    stream, _ = streams(tmp_path, {"path": str(tmp_path / "x.txt")}, tokenizer=bpe)
    (whole,) = train_bpe([text], 400).encode([text])
    assert len(stream.starts) == 1
    assert np.array_equal(stream.tokens, whole)


def test_text_without_line_ends_is_cut_too(tmp_path: Path, small_pieces: None) -> None:
    text = "ü" * 2007
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    stream, _ = streams(tmp_path, {"path": str(tmp_path / "x.txt")})
    (document,) = documents(stream)
    assert bytes(document[:-1]).decode() == text


@pytest.mark.parametrize("packing", Packing)
def test_a_million_tokens_a_second_and_core(packing: Packing) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, 4_000_001).astype(np.uint16)
    starts = np.arange(0, len(tokens), 300)
    parts = Parts([Stream(tokens, starts, starts + 100)], 1024, packing)
    data = TrainingData(parts, Shuffled(parts.counts, 1), Share(0, 1, 8))
    begun, read = time.process_time(), 0
    for step in range(30):
        read += sum(batch.inputs.numel() for batch in data.micro_batches(step * 32, 32))
    rate = read / (time.process_time() - begun)
    print(f"{packing}: {rate / 1e6:.1f} million tokens a second")
    assert rate > 1e6
