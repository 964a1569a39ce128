"""The tokenised corpus: made once, found again, split by content."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.data import prepare as preparation
from mfsdp_trainer.data.corpus import Corpus
from mfsdp_trainer.data.tokenizer import byte_tokenizer, files_digest, train_bpe
from mfsdp_trainer.errors import DataError


def config(text: Path, path: Path, **data: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"sources": [{"path": str(text)}], **data},
            "training": {"steps": 1, "globalBatchSize": 1},
            "checkpoint": {"path": str(path)},
        }
    )


def prepare(config: TrainerConfig) -> Corpus:
    (corpus,) = preparation.prepare(config).corpora
    return corpus


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    directory = tmp_path / "texts"
    directory.mkdir()
    for number in range(100):
        (directory / f"{number:03d}.txt").write_text(f"document {number}", encoding="utf-8")
    return directory


def test_holds_every_document_once_with_an_end_after_each(texts: Path, tmp_path: Path) -> None:
    corpus = prepare(config(texts, tmp_path, validationFraction=0.3))
    parts = corpus.streams()
    documents = [
        bytes(piece).decode()
        for part in parts
        for piece in "".join(map(chr, part.tokens.tolist())).split(chr(256))[:-1]
        for piece in [piece.encode()]
    ]
    assert sorted(documents) == sorted(f"document {number}" for number in range(100))
    held_out = sum(token == 256 for token in parts[1].tokens.tolist())
    assert 15 < held_out < 45
    for part in parts:
        begins = [0, *(np.flatnonzero(part.tokens == 256) + 1)]
        assert part.starts.tolist() == begins[:-1]


def test_the_split_goes_by_content_not_by_place(texts: Path, tmp_path: Path) -> None:
    first = prepare(config(texts, tmp_path, validationFraction=0.3)).streams()[1].tokens.tolist()
    (texts / "000.txt").rename(texts / "zzz.txt")
    (texts / "aaa.txt").write_text("document 0", encoding="utf-8")
    again = prepare(config(texts, tmp_path, validationFraction=0.3)).streams()[1].tokens.tolist()
    copies = again.count(ord("0")) - first.count(ord("0"))
    assert copies in (0, 1)
    assert len(again) - len(first) in (0, len("document 0") + 1)


def test_is_made_once_and_again_when_the_text_changes(texts: Path, tmp_path: Path) -> None:
    first = prepare(config(texts, tmp_path))
    made = (first.directory / "train.bin").stat().st_mtime_ns
    assert prepare(config(texts, tmp_path)) == first
    assert (first.directory / "train.bin").stat().st_mtime_ns == made
    (texts / "new.txt").write_text("more", encoding="utf-8")
    changed = prepare(config(texts, tmp_path))
    assert changed.directory != first.directory
    assert changed.digest != first.digest
    assert not list((tmp_path / "data").glob(".*"))


def test_a_bpe_tokenizer_outlives_growing_text(texts: Path, tmp_path: Path) -> None:
    bpe = {"tokenizer": {"kind": "bpe", "vocabSize": 300}}
    first = prepare(config(texts, tmp_path, **bpe))
    (texts / "new.txt").write_text("entirely different words" * 50, encoding="utf-8")
    assert prepare(config(texts, tmp_path, **bpe)).vocabulary == first.vocabulary


@pytest.mark.parametrize("name", ["train.bin", "train.docs", "corpus.json"])
@pytest.mark.parametrize("contents", [None, b"", b"{}"])
def test_a_damaged_one_is_made_again(
    texts: Path, tmp_path: Path, name: str, contents: bytes | None
) -> None:
    first = prepare(config(texts, tmp_path))
    whole = (first.directory / "train.bin").read_bytes()
    (first.directory / name).unlink()
    if contents is not None:
        (first.directory / name).write_bytes(contents)
    assert prepare(config(texts, tmp_path)) == first
    assert (first.directory / "train.bin").read_bytes() == whole


def test_a_file_that_other_nodes_do_not_see_is_told(texts: Path, tmp_path: Path) -> None:
    corpus = prepare(config(texts, tmp_path))
    (corpus.directory / "train.bin").unlink()
    with pytest.raises(DataError, match="directory that all nodes share"):
        corpus.streams()


def test_new_fields_do_not_give_an_old_tokenizer_another_name(tmp_path: Path) -> None:
    """A resumed run would train a new one, and read its checkpoints as those of another model."""
    bpe = {"kind": "bpe", "vocabSize": 300}
    old = config(Path("/data/*.txt"), tmp_path, tokenizer=bpe, validationFraction=0.01)
    assert preparation._tokenizer_directory(old).name == "tokenizer-69812444d3a853e9"


@pytest.mark.parametrize("changed", ["tokenizer", "template"])
def test_another_tokenizer_at_the_same_path_is_used(
    texts: Path, tmp_path: Path, changed: str
) -> None:
    """Also on a resume, where the checkpoint's identity then refuses it."""
    place = tmp_path / "tokenizer"
    byte_tokenizer().transformers.save_pretrained(place)
    run = config(texts, tmp_path, tokenizer={"kind": "huggingface", "path": str(place)})
    first = prepare(run)
    assert prepare(run) == first
    if changed == "tokenizer":
        train_bpe(["other words"], 300).transformers.save_pretrained(place)
    else:
        (place / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    files_digest.cache_clear()  # as in another process
    second = prepare(run)
    saved = preparation.saved_tokenizer(run)
    assert saved.vocabulary == second.vocabulary
    assert (second.vocabulary != first.vocabulary) == (changed == "tokenizer")
    assert saved.transformers.chat_template == ("{{ messages }}" if changed == "template" else None)
