"""Tables and token lists: parquet, datasets on disk, and what is wrong with some of them."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.trainer.data.kit import documents, streams, trained, write_lines

from mfsdp_trainer.errors import DataError

TEXTS = [f"document {n}" for n in range(300)]
EXPECTED = [[*text.encode(), 256] for text in TEXTS]
ROWS = [[1, 2, 3], [4], [], [5, 6]]
LABELS = [[-100, 2, 3], [4], [], [5, -100]]


def parquet(file: Path, columns: dict[str, Any]) -> dict[str, Any]:
    pyarrow.parquet.write_table(pyarrow.table(columns), file, row_group_size=100)
    return {"path": str(file), "format": "parquet"}


def arrow(path: Path, columns: dict[str, Any]) -> dict[str, Any]:
    datasets.Dataset.from_dict(columns).save_to_disk(path)
    return {"path": str(path), "format": "arrow"}


def lines(file: Path, columns: dict[str, Any]) -> dict[str, Any]:
    names = list(columns)
    records = zip(*columns.values(), strict=True)
    write_lines(file, *(dict(zip(names, record, strict=True)) for record in records))
    return {"path": str(file), "format": "jsonl"}


FORMATS = [parquet, arrow, lines]


@pytest.mark.parametrize("write", FORMATS)
def test_text(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path / "data", {"body": TEXTS, "other": [0] * len(TEXTS)})
    stream, _ = streams(tmp_path, {**source, "textField": "body"})
    assert documents(stream) == EXPECTED


@pytest.mark.parametrize("write", FORMATS)
def test_tokens_and_their_labels(tmp_path: Path, write: Any) -> None:
    (tmp_path / "a").mkdir()
    source = write(tmp_path / "a" / "data", {"input_ids": ROWS, "labels": LABELS})
    stream, _ = streams(tmp_path / "a", {**source, "content": "tokens"})
    assert documents(stream) == [[1, 2, 3], [4], [5, 6]]
    assert trained(stream) == ".\x02\x03\x04\x05."
    (tmp_path / "b").mkdir()
    source = write(tmp_path / "b" / "data", {"ids": ROWS})
    stream, _ = streams(tmp_path / "b", {**source, "content": "tokens", "tokensField": "ids"})
    assert trained(stream) == "\x01\x02\x03\x04\x05\x06"


@pytest.mark.parametrize("write", FORMATS)
def test_conversations(tmp_path: Path, write: Any) -> None:
    (tmp_path / "template").write_text(
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ m.name }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )
    talk = [{"role": "user", "content": "x", "name": "Y"}, {"role": "assistant", "content": "z"}]
    source = write(tmp_path / "data", {"talk": [talk, talk]})
    stream, _ = streams(
        tmp_path,
        {**source, "content": "chat", "messagesField": "talk"},
        tokenizer={"chatTemplate": str(tmp_path / "template")},
    )
    # A table has name in every message: None is as if it were not there.
    assert trained(stream) == "....z....z"


def test_a_directory_of_parquet_may_hold_other_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    parquet(tmp_path / "data" / "b.parquet", {"text": TEXTS[150:]})
    parquet(tmp_path / "data" / "a.parquet", {"text": TEXTS[:150]})
    (tmp_path / "data" / "README.md").write_text("not a table")
    stream, _ = streams(tmp_path, {"path": str(tmp_path / "data"), "format": "parquet"})
    assert documents(stream) == EXPECTED


def test_the_split_of_a_dataset_is_chosen(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_dict({"text": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "data")
    source = {"path": str(tmp_path / "data"), "format": "arrow"}
    stream, _ = streams(tmp_path, {**source, "split": "test"})
    assert documents(stream) == [[*b"test", 256]]
    for split in (None, "dev"):
        with pytest.raises(DataError, match="set split to one of its splits: train, test"):
            streams(tmp_path, {**source, "split": split})


def test_a_selection_of_a_dataset_is_read_in_its_order(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict({"text": TEXTS}).select([5, 2, 7])
    dataset.save_to_disk(tmp_path / "data")
    stream, _ = streams(tmp_path, {"path": str(tmp_path / "data"), "format": "arrow"})
    assert documents(stream) == [EXPECTED[5], EXPECTED[2], EXPECTED[7]]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path / "data", {"body": TEXTS, "id": [0] * len(TEXTS)})
    with pytest.raises(DataError, match=r"data: no column 'text' \(it has: body, id\): set text"):
        streams(tmp_path, source)


@pytest.mark.parametrize(
    ("form", "says"), [("parquet", "not a parquet file"), ("arrow", "is no dataset")]
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, form: str, says: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.parquet").write_text("no such thing")
    with pytest.raises(DataError, match=rf"{tmp_path}/data.*{says}"):
        streams(tmp_path, {"path": str(tmp_path / "data"), "format": form})


def not_utf8(rows: int, wrong: int) -> pyarrow.Array:
    """A column of text in which one row is not."""
    values = [b"\xff\xfe" if row == wrong else b"fine" for row in range(rows)]
    whole = pyarrow.array(values, pyarrow.binary())
    return pyarrow.Array.from_buffers(pyarrow.string(), rows, whole.buffers())


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_row_of_a_table_that_is_not_utf8_is_a_bad_record(tmp_path: Path, write: Any) -> None:
    column = not_utf8(300, 270)
    if write is parquet:
        source = parquet(tmp_path / "data", {"text": column})
    else:
        datasets.Dataset(pyarrow.table({"text": column})).save_to_disk(tmp_path / "data")
        source = {"path": str(tmp_path / "data"), "format": "arrow"}
    with pytest.raises(DataError, match=r"data row 270: cannot be read: .*UTF"):
        streams(tmp_path, source)
    stream, _ = streams(tmp_path, source, maxBadRecords=1)
    assert documents(stream) == [[*b"fine", 256]] * 299


@pytest.mark.parametrize("damage", ["offsets", "messages", "cut"])
def test_a_damaged_dataset_is_named(tmp_path: Path, damage: str) -> None:
    source = arrow(tmp_path / "data", {"text": [f"{n:04d}" * 4 for n in range(3000)]})
    (file,) = (tmp_path / "data").glob("*.arrow")
    raw = bytearray(file.read_bytes())
    if damage == "offsets":
        at = raw.index((16 * np.arange(500, 510, dtype="<i4")).tobytes())
        raw[at : at + 4] = b"\xff\xff\xff\x7f"
    elif damage == "messages":
        at = raw.index(b"\xff\xff\xff\xff", 8)
        raw[at + 8 : at + 80] = b"\xff" * 72
    else:
        del raw[len(raw) // 2 :]
    file.write_bytes(raw)
    with pytest.raises(DataError, match=rf"{tmp_path}/data"):
        streams(tmp_path, source)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            {"input_ids": [1, 257]},
            "token 257 is not one of the tokenizer's 257: set data.tokenizer",
        ),
        ({"input_ids": [-1]}, "token -1 is not one of"),
        ({"input_ids": [1.5]}, "not a list of token ids"),
        ({"input_ids": [[1]]}, "not a list of token ids"),
        ({"input_ids": ["a"]}, "not a list of token ids"),
        ({"input_ids": "a"}, "no list of token ids but a value of type str under 'input_ids'"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, r"labels must have .* \(nothing shifted\)"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels must have a token's id, or -100"),
    ],
)
def test_tokens_that_cannot_be_used_are_named(tmp_path: Path, record: Any, says: str) -> None:
    file = write_lines(tmp_path / "x.jsonl", {"input_ids": [1]}, record)
    with pytest.raises(DataError, match=rf"x\.jsonl:2: {says}"):
        streams(tmp_path, {"path": str(file), "format": "jsonl", "content": "tokens"})


def test_what_is_held_out_goes_by_content(tmp_path: Path) -> None:
    rows = [[n % 200, n // 200, 7] for n in range(1000)]
    source = arrow(tmp_path / "data", {"input_ids": rows * 2})
    kept, held_out = streams(tmp_path, {**source, "content": "tokens"}, validationFraction=0.2)
    sides = [{tuple(row) for row in documents(stream)} for stream in (kept, held_out)]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {tuple(row) for row in rows}
    assert len(held_out) / (len(kept) + len(held_out)) == pytest.approx(0.2, abs=0.04)
    assert np.all(np.diff(kept.starts) == 3)
