"""Reads YAML as the API server does where it matters: YAML 1.2 scalars, no duplicate keys.

PyYAML follows YAML 1.1: to it `1e-5` is a string, `010` is eight and `12:30` is 750. This loader
follows the core schema of YAML 1.2, of which JSON is a subset, and can tell the line of any field.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import yaml

from .plain import MERGE, PlainCheck

_INT: Final = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT: Final = (
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SCALARS: Final = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
)

type FieldPath = Sequence[str | int]


class YamlError(ValueError):
    """A text that is no YAML, or says a key twice. `line` counts from 1."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in first:
                    raise YamlError(
                        f"{key.value} is set twice, first on line {first[key.value]}: remove one",
                        line,
                    )
                first[key.value] = line
        return super().construct_mapping(node, deep)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).lower()
    return float(re.sub(r"\.(inf|nan)$", r"\1", text))


_FORMS: Final = {_name: re.compile(_pattern) for _name, _pattern, _ in _SCALARS}
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


class Document:
    """One parsed document: its value, and the line of each of its fields."""

    def __init__(self, value: Any, root: yaml.Node | None) -> None:
        self.value = value
        self._root = root

    def line(self, path: FieldPath) -> int | None:
        """The line (from 1) of the field, or of the nearest parent that is in the text."""
        node, line = self._root, None
        if node is not None:
            line = node.start_mark.line + 1
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pairs = [(k, v) for k, v in node.value if k.value == str(part)]
                if not pairs:
                    return line
                key, node = pairs[0]
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                if part >= len(node.value):
                    return line
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                return line
        return line


def parse(text: str) -> Document:
    """Parse one document. Raises YamlError."""
    # A tab may indent JSON, which the rest of YAML's grammar cannot say; in a JSON string it must
    # be escaped, so nothing is lost.
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")
    with _loading(text) as loader:
        return _document(loader, loader.get_single_node())


def parse_all(text: str) -> list[Document]:
    """Parse a file of documents separated by `---`, as kubectl takes it. Raises YamlError."""
    documents = []
    with _loading(text) as loader:
        while loader.check_node():
            documents.append(_document(loader, loader.get_node()))
    return documents


def _document(loader: _Loader, root: yaml.Node | None) -> Document:
    if root is None:
        return Document(None, None)
    PlainCheck(_FORMS).check(root)
    return Document(loader.construct_document(root), root)


@contextmanager
def _loading(text: str) -> Iterator[_Loader]:
    """A loader whose errors come out as YamlError."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        raise YamlError(f"not valid YAML: character {error.character:#x}", None) from None
    try:
        yield loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        raise YamlError(f"not valid YAML: {problem}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise YamlError(f"not valid YAML: {error}", None) from None
    except RecursionError:  # of PyYAML, which meets it before we can count
        raise YamlError("not valid YAML: nested too deeply", None) from None
    finally:
        loader.dispose()
