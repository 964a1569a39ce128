"""Documents from files, and one line for each thing that can be wrong with them."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.data.bad import BadRecords
from mfsdp_trainer.data.content import documents
from mfsdp_trainer.data.documents import HeldOut
from mfsdp_trainer.data.sources import source_files
from mfsdp_trainer.errors import DataError


def texts(sources: list[DataSource]) -> list[str]:
    """Every document of the sources, in order."""
    pieces = documents(sources, HeldOut(0), BadRecords(0))
    return [piece.content for piece in pieces if isinstance(piece.content, str)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "d.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text of {name}", encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a.txt", ["a.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "deep/er/c.txt"]),
        ("deep/*/?.txt", ["deep/er/c.txt"]),
        (".", ["a.txt", "b.txt", "d.md", "deep/er/c.txt"]),
    ],
)
def test_files_directories_and_patterns_in_sorted_order(
    tree: Path, path: str, names: list[str]
) -> None:
    source = DataSource(path=str(tree / path))
    assert texts([source]) == [f"text of {name}" for name in names]


def test_jsonl_documents_in_order_without_empty_ones(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    lines = [json.dumps({"body": text}) for text in ("one", "", "two\nlines", "três")]
    file.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    source = DataSource.model_validate({"path": str(file), "format": "jsonl", "textField": "body"})
    assert texts([source]) == ["one", "two\nlines", "três"]


def test_the_standard_library_is_there_without_its_tests() -> None:
    source = DataSource.model_validate({"builtin": "python-stdlib"})
    files = source_files(source)
    assert sum(file.stat().st_size for file in files) > 5_000_000
    assert not [file for file in files if {"test", "site-packages"} & set(file.parts)]
    assert any("class JSONDecoder" in document for document in texts([source]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "x"', r":2: not a line of JSON: "),
        (b"[1]", r":2: a list where a JSON object is needed"),
        (b'{"other": 1, "more": 2}', r":2: no text under 'text' \(it has: more, other\): set te"),
        (b'{"text": 3}', r":2: no text but a value of type int under 'text': set textField"),
        (b'{"text": null}', r":2: no text but null under 'text': set textField"),
        (b'{"text": "\xff"}', r":2: not a line of JSON: "),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    source = DataSource.model_validate({"path": str(file), "format": "jsonl"})
    with pytest.raises(DataError, match=f"{file}{message}"):
        texts([source])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, r"data\.sources: .*missing does not exist in the container"),
        ("*.nothing", None, r"data\.sources: no file matches .*\*\.nothing"),
        ("x.txt", b"\xff\xfe\x00", r"x\.txt: not UTF-8 text .*: convert it, or leave it out"),
    ],
)
def test_a_bad_path_or_file_is_named(tmp_path: Path, name: str, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        texts([DataSource(path=str(tmp_path / name))])


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"])
def test_json_beyond_all_measure_names_its_line(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    source = DataSource.model_validate({"path": str(file), "format": "jsonl"})
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a line of JSON: "):
        texts([source])


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(r'{"text": "a\ud800b \ud83d\ude00"}', encoding="utf-8")
    source = DataSource.model_validate({"path": str(file), "format": "jsonl"})
    assert texts([source]) == ["a\ufffdb \U0001f600"]


def test_a_mounted_config_map_counts_once(tmp_path: Path) -> None:
    hidden = tmp_path / "..2026_01_01"
    hidden.mkdir()
    (hidden / "a.txt").write_text("once", encoding="utf-8")
    (tmp_path / "..data").symlink_to(hidden.name)
    (tmp_path / "a.txt").symlink_to("..data/a.txt")
    (tmp_path / "lost+found").mkdir(mode=0)
    assert texts([DataSource(path=str(tmp_path))]) == ["once"]


@pytest.fixture
def shut() -> Iterator[Path]:
    """A tree with `data/deep/a.txt`, `deep` shut, seen without root's rights."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        tree.chmod(0o755)
        (tree / "data" / "deep").mkdir(parents=True)
        (tree / "data" / "deep" / "a.txt").write_text("text", encoding="utf-8")
        (tree / "data" / "deep").chmod(0)
        if root:
            os.seteuid(65534)
        yield tree
        if root:
            os.seteuid(0)
        (tree / "data" / "deep").chmod(0o700)


@pytest.mark.parametrize("path", ["data", "data/deep/*.txt", "data/deep/a.txt"])
def test_what_may_not_be_read_is_told(shut: Path, path: str) -> None:
    with pytest.raises(DataError) as caught:
        texts([DataSource(path=str(shut / path))])
    assert str(caught.value).startswith("data.sources: ")
    assert "cannot be read: Permission denied: let the trainer's user read it" in str(caught.value)
