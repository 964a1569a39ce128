"""Bad records, validation, blends, Megatron datasets: what `prepare` makes of them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tests.trainer.data.kit import config, documents, prepared, streams, write_lines

from mfsdp_trainer.data.prepare import Prepared
from mfsdp_trainer.errors import DataError


def lines(file: Path, *records: Any) -> dict[str, Any]:
    return {"path": str(write_lines(file, *records)), "format": "jsonl"}


# bad records


def test_bad_records_are_left_out_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = lines(tmp_path / "x.jsonl", {"text": "a"}, "{", {"no": 1}, {"text": "b"}, "[]")
    with caplog.at_level(logging.WARNING, "mfsdp_trainer"):
        made = prepared(tmp_path, source, maxBadRecords=3)
    assert made.bad_records == 3
    assert documents(made.corpora[0].streams()[0]) == [[97, 256], [98, 256]]
    (warning,) = caplog.messages
    assert warning.startswith("3 bad records were left out, the first: ")
    for told in ("x.jsonl:2: not a line of JSON", "x.jsonl:3: no text under", "x.jsonl:5: a list"):
        assert told in warning


def test_one_bad_record_too_many_fails_also_when_the_limit_is_lowered_later(tmp_path: Path) -> None:
    source = lines(tmp_path / "x.jsonl", {"text": "a"}, "{", {"no": 1})
    with pytest.raises(DataError, match=r"x\.jsonl:3: no text .*1 before, .*data\.maxBadRecords"):
        prepared(tmp_path, source, maxBadRecords=1)
    assert prepared(tmp_path, source, maxBadRecords=2).bad_records == 2
    assert prepared(tmp_path, source, maxBadRecords=2).bad_records == 2
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a line of JSON"):
        prepared(tmp_path, source)


# nothing to learn


@pytest.mark.parametrize("weights", [{}, {"weight": 1}])
def test_tokens_of_which_none_is_trained_on_are_an_error(
    tmp_path: Path, weights: dict[str, int]
) -> None:
    rows = [{"input_ids": [n, 2, 3], "labels": [-100] * 3} for n in range(20)]
    source = {**lines(tmp_path / "x.jsonl", *rows), "content": "tokens", **weights}
    run = config(tmp_path, source)
    with pytest.raises(DataError, match=r"nothing of .*x\.jsonl is trained on: all 60 tokens"):
        prepared(tmp_path, source).training(run.data, seed=0)
    rows[3]["labels"] = [-100, 2, -100]
    source |= lines(tmp_path / "x.jsonl", *rows)
    made = prepared(tmp_path, source)
    assert made.corpora[0].facts.train.trained == 1
    assert made.training(run.data, seed=0)[0].tokens == 60


# validation


def test_validation_sources_are_all_held_out_and_nothing_else_is(tmp_path: Path) -> None:
    many = lines(tmp_path / "x.jsonl", *({"text": str(n)} for n in range(1000)))
    own = lines(tmp_path / "y.jsonl", {"text": "own"})
    made = prepared(tmp_path, many, validation=[own], validationFraction=0.4)
    first, second = (corpus.streams() for corpus in made.corpora)
    assert len(documents(first[0])) == 1000
    assert len(first[1]) == len(second[0]) == 0
    assert documents(second[1]) == [[*b"own", 256]]


# Megatron


def megatron(prefix: Path, rows: list[list[int]], dtype: Any = np.uint16) -> dict[str, Any]:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for row in rows:
        builder.add_document(torch.tensor(row), [len(row)])
    builder.finalize(f"{prefix}.idx")
    return {"path": str(prefix), "format": "megatron"}


ROWS = [[n, n + 1, 256][: 1 + n % 3] for n in range(20)]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_megatron_documents_are_read_where_they_are(tmp_path: Path, dtype: Any) -> None:
    source = megatron(tmp_path / "a.b_document", ROWS, dtype)
    train, held_out = streams(tmp_path, source)
    assert documents(train) == ROWS
    assert len(held_out) == 0
    assert isinstance(train.tokens, np.memmap)
    assert not list((tmp_path / "run" / "data").rglob("*.bin"))
    for suffix in (".bin", ".idx"):
        again, _ = streams(tmp_path, {**source, "path": source["path"] + suffix})
        assert documents(again) == ROWS


def test_the_last_megatron_documents_are_held_out(tmp_path: Path) -> None:
    train, held_out = streams(tmp_path, megatron(tmp_path / "x", ROWS), validationFraction=0.2)
    assert documents(train) == ROWS[:16]
    assert documents(held_out) == ROWS[16:]


def test_a_token_outside_the_vocabulary_names_file_and_document(tmp_path: Path) -> None:
    source = megatron(tmp_path / "x", [*ROWS, [1, 300], [2]])
    with pytest.raises(DataError, match=r"x\.bin document 20: token 300 is not one of .* 257"):
        streams(tmp_path, source)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.with_suffix(".idx").unlink(), r"x\.idx does not exist"),
        (
            lambda path: path.with_suffix(".bin").write_bytes(b"12"),
            r"x\.bin: 2 bytes where .*x\.idx",
        ),
        (lambda path: path.with_suffix(".idx").write_bytes(b"12"), r"x\.idx: megatron-core cannot"),
    ],
)
def test_a_broken_megatron_dataset_is_named(tmp_path: Path, damage: Any, says: str) -> None:
    source = megatron(tmp_path / "x", ROWS)
    damage(tmp_path / "x")
    with pytest.raises(DataError, match=says):
        streams(tmp_path, source)


# several sources


def sequences(made: Prepared, path: Path, *sources: Any, first: int = 0, amount: int) -> list[Any]:
    parts, order = made.training(config(path, *sources).data, seed=1)
    return parts.batch(order.places(first, amount)).inputs[:, 0].tolist()


def two(path: Path, **weights: int) -> list[dict[str, Any]]:
    """A source of 10 sequences, of tokens 1, and one of 100, of tokens 2."""
    tokens = {"a": [[1] * 81], "b": [[2] * 801]}
    return [
        {**lines(path / f"{name}.jsonl", {"input_ids": rows[0]}), "content": "tokens"}
        | ({"weight": weights[name]} if weights else {})
        for name, rows in tokens.items()
    ]


def test_a_blend_has_its_proportions_and_resumes_anywhere(tmp_path: Path) -> None:
    sources = two(tmp_path, a=30, b=70)
    made = prepared(tmp_path, *sources)
    drawn = sequences(made, tmp_path, *sources, amount=200)
    for number in range(1, 201):
        assert abs(drawn[:number].count(1) - 0.3 * number) < 1
    assert sequences(made, tmp_path, *sources, first=37, amount=50) == drawn[37:87]


def test_without_weights_each_sequence_comes_once_an_epoch(tmp_path: Path) -> None:
    sources = two(tmp_path)
    _, order = prepared(tmp_path, *sources).training(config(tmp_path, *sources).data, seed=1)
    assert sorted(order.places(0, len(order))) == [(0, number) for number in range(110)]


def test_weights_are_part_of_the_order(tmp_path: Path) -> None:
    digests = {
        prepared(tmp_path, *two(tmp_path, **weights)).digest
        for weights in ({}, {"a": 1, "b": 1}, {"a": 1, "b": 2})
    }
    assert len(digests) == 3


def test_megatron_and_text_make_one_epoch(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x" * 80)
    sources = [megatron(tmp_path / "m", [[3] * 41]), {"path": str(tmp_path / "x.txt")}]
    drawn = sequences(prepared(tmp_path, *sources), tmp_path, *sources, amount=15)
    assert sorted(drawn) == [3] * 5 + [ord("x")] * 10


def test_a_weighted_source_without_a_sequence_is_named(tmp_path: Path) -> None:
    small = {**lines(tmp_path / "s.jsonl", {"text": "s"}), "weight": 1}
    sources = [{**lines(tmp_path / "x.jsonl", {"text": "x" * 20}), "weight": 1}, small]
    made = prepared(tmp_path, *sources)
    with pytest.raises(DataError, match=r"data\.sources\[1\] does not fill one sequence"):
        sequences(made, tmp_path, *sources, amount=1)


def test_too_little_text_says_how_little(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", {"text": "s"})
    with pytest.raises(DataError, match=r"hold 2 training tokens.*sequenceLength 8 \+ 1"):
        sequences(prepared(tmp_path, source), tmp_path, source, amount=1)
