"""Tokenizers that need no download."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mfsdp_trainer.config import DataConfig, ModelConfig
from mfsdp_trainer.data.tokenizer import (
    byte_tokenizer,
    configured_tokenizer,
    load_tokenizer,
    train_bpe,
)
from mfsdp_trainer.errors import ConfigError, DataError

BYTES = byte_tokenizer()
TEXTS = [f"def function_{n}(argument):\n    return argument + {n}\n" for n in range(200)]


@settings(deadline=None)
@given(st.text())
def test_a_byte_is_a_token_and_transformers_agrees(text: str) -> None:
    (ids,) = BYTES.encode([text])
    assert ids.tolist() == [*text.encode("utf-8"), 256]
    if "<|endoftext|>" not in text:
        assert BYTES.transformers(text)["input_ids"] == ids.tolist()[:-1]
        assert BYTES.transformers.decode(ids[:-1].tolist()) == text


def test_every_byte_has_its_own_value() -> None:
    assert BYTES.vocabulary.size == 257
    assert BYTES.vocabulary.end == 256
    every = "".join(map(chr, range(0x250))) + "\U0010fff0"
    assert BYTES.transformers(every)["input_ids"] == list(every.encode())


def test_bpe_is_the_same_for_the_same_text_and_reverses() -> None:
    first, second = train_bpe(TEXTS, 400), train_bpe(TEXTS, 400)
    assert first.vocabulary == second.vocabulary
    assert first.vocabulary.size == 400
    text = "def function_7(x): pass # Ünïcode 漢字 <|endoftext|>"
    (ids,) = first.encode([text])
    assert ids[-1] == first.vocabulary.end
    assert first.vocabulary.end not in ids[:-1]
    assert first.transformers.decode(ids[:-1].tolist()) == text
    assert len(ids) < len(text.encode())


def test_what_is_saved_reads_the_same(tmp_path: Path) -> None:
    for tokenizer in (BYTES, train_bpe(TEXTS, 300)):
        tokenizer.transformers.save_pretrained(tmp_path)
        again = load_tokenizer(tmp_path, "data.tokenizer.path")
        assert again.vocabulary == tokenizer.vocabulary
        assert (again.encode(TEXTS[:1])[0] == tokenizer.encode(TEXTS[:1])[0]).all()
        assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|endoftext|>"


def data(**tokenizer: str) -> DataConfig:
    return DataConfig.model_validate(
        {"sources": [{"path": "x"}], "tokenizer": {"kind": "huggingface", **tokenizer}}
    )


def test_wrong_tokenizers_are_told_by_field_and_fix(tmp_path: Path) -> None:
    fresh = ModelConfig(config={"model_type": "llama"})
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.path: kind huggingface needs it"):
        configured_tokenizer(data(), fresh, [])
    with pytest.raises(DataError, match=r"data\.tokenizer\.path .*nowhere: no such directory"):
        configured_tokenizer(data(path=str(tmp_path / "nowhere")), fresh, [])
    with pytest.raises(DataError, match=r"model\.path .*: it holds no tokenizer \(tokenizer"):
        configured_tokenizer(data(), ModelConfig(path=str(tmp_path)), [])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"model\.path .*: not a tokenizer: "):
        configured_tokenizer(data(), ModelConfig(path=str(tmp_path)), [])


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    endless = PreTrainedTokenizerFast(tokenizer_object=BYTES.transformers.backend_tokenizer)
    endless.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has no eos_token to end documents with"):
        load_tokenizer(tmp_path, "model.path")


def test_ids_with_holes_count_to_the_last(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    BYTES.transformers.save_pretrained(tmp_path)
    saved = json.loads(file.read_text(encoding="utf-8"))
    saved["model"]["vocab"]["far"] = 999
    file.write_text(json.dumps(saved), encoding="utf-8")
    assert load_tokenizer(tmp_path, "data.tokenizer.path").vocabulary.size == 1000


def kind(name: str) -> DataConfig:
    return DataConfig.model_validate({"sources": [{"path": "x"}], "tokenizer": {"kind": name}})


def test_weights_are_trained_on_with_the_tokenizer_they_know(tmp_path: Path) -> None:
    BYTES.transformers.save_pretrained(tmp_path / "bytes")
    train_bpe(TEXTS, 4096).transformers.save_pretrained(tmp_path / "bpe")
    (tmp_path / "none").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    for chosen, there in (("byte", "bytes"), ("bpe", "bpe"), ("byte", "none")):
        configured_tokenizer(kind(chosen), ModelConfig(path=str(tmp_path / there)), TEXTS)
    for chosen, there in (("byte", "bpe"), ("bpe", "bytes"), ("byte", "broken")):
        model = ModelConfig(path=str(tmp_path / there))
        with pytest.raises(ConfigError, match=r"tokenizer of its own .*: set kind to huggingface"):
            configured_tokenizer(kind(chosen), model, TEXTS)
        fresh = model.model_copy(update={"random_init": True})
        configured_tokenizer(kind(chosen), fresh, TEXTS)
