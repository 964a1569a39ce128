"""What of YAML the API server takes: JSON's kinds of value, nested and repeated within reason.

YAML can say more: types of its own, aliases that contain themselves, a few lines that unfold to
gigabytes. Checked on the parsed nodes, before any value is made of them.
"""

import math
import re
from collections.abc import Iterable
from typing import Final

import yaml

_TAG: Final = "tag:yaml.org,2002:"
MERGE: Final = f"{_TAG}merge"
_COLLECTIONS: Final = frozenset({f"{_TAG}map", f"{_TAG}seq"})
MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 100_000
_MAX_DIGITS: Final = 300
"""Digits of a whole number: more than any float holds, so nothing could be meant by it."""


class PlainCheck:
    """Walks a document once. `forms` are the texts that a scalar of each tag may have."""

    def __init__(self, forms: dict[str, re.Pattern[str]]) -> None:
        self._forms = {f"{_TAG}{name}": form for name, form in forms.items()}
        self._values = 0

    def check(self, node: yaml.Node, depth: int = 0) -> None:
        """Raises MarkedYAMLError at the first value that is not plain. Makes every key a text."""
        self._values += 1
        if depth > MAX_DEPTH:
            raise _refusal(node, f"nested deeper than {MAX_DEPTH} levels")
        if self._values > _MAX_VALUES:
            raise _refusal(node, f"more than {_MAX_VALUES:,} values, aliases written out")
        if isinstance(node, yaml.ScalarNode):
            self._scalar(node)
            return
        if node.tag not in _COLLECTIONS:
            raise _refusal(node, f"{_shown(node.tag)} is no kind of value here: remove it")
        for child in node.value:
            if isinstance(child, tuple):
                self._key(child[0])
            self.check(child[1] if isinstance(child, tuple) else child, depth + 1)

    def _scalar(self, node: yaml.ScalarNode) -> None:
        if node.tag == f"{_TAG}str":
            return
        form = self._forms.get(node.tag)
        if form is None:
            raise _refusal(node, f"{_shown(node.tag)} is no kind of value here: remove it")
        if not form.fullmatch(node.value):
            raise _refusal(node, f"{node.value[:60]!r} is not what {_shown(node.tag)} means")
        if node.tag == f"{_TAG}int" and len(node.value) > _MAX_DIGITS:
            raise _refusal(node, f"a number of {len(node.value)} digits")

    def _key(self, key: yaml.Node) -> None:
        if not isinstance(key, yaml.ScalarNode):
            raise _refusal(key, "a key must be text")
        if key.tag != MERGE:
            key.tag = f"{_TAG}str"


def _shown(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _refusal(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def not_finite(value: object) -> tuple[int | str, ...] | None:
    """The path of the first number in a value that JSON has no word for; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ()
    entries: Iterable[tuple[int | str, object]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, child in entries:
        if (rest := not_finite(child)) is not None:
            return (key, *rest)
    return None


def is_too_deep(value: object) -> bool:
    """Whether a value has more than MAX_DEPTH levels. No recursion: that is what would fail."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent)]
    return bool(level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
