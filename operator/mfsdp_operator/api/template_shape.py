"""Holds a template against its outline (`template_schema.py`), as the API server does at apply.

For files, which never met the API server: what passes here must not be refused there. And for the
fields that the API server drops without a word (`template_fields.py`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .problems import FieldPath, Problem
from .schema import Schema
from .template_fields import field_problems
from .template_schema import template_properties

_SPEC: Final = template_properties()["spec"]
_KINDS: Final[Mapping[str, type]] = {"object": Mapping, "array": list, "string": str}
_WORDS: Final = {"object": "an object", "array": "a list", "string": "a string"}


def shape_problems(template: Mapping[str, Any]) -> Iterator[Problem]:
    """What in `template.spec` is of the wrong kind, missing, too long, or would vanish unseen."""
    yield from _walk(template.get("spec", {}), _SPEC, ("spec", "template", "spec"))
    yield from field_problems(template)


def _walk(value: object, schema: Schema, path: FieldPath) -> Iterator[Problem]:
    kind = schema["type"]
    if not isinstance(value, _KINDS[kind]):
        quotes = ": put it in quotes" if isinstance(value, bool | int | float) else ""
        yield Problem(path, f"must be {_WORDS[kind]}, not {value!r:.60}{quotes}")
        return
    limit = schema.get("maxLength") or schema.get("maxItems")
    if limit is not None and isinstance(value, str | list) and len(value) > limit:
        unit = "characters" if kind == "string" else "entries"
        yield Problem(path, f"must have at most {limit} {unit}")
    if isinstance(value, list):
        for number, child in enumerate(value):
            yield from _walk(child, schema["items"], (*path, number))
    if isinstance(value, Mapping):
        yield from _fields(value, schema, path)


def _fields(value: Mapping[str, Any], schema: Schema, path: FieldPath) -> Iterator[Problem]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem((*path, name), "is required: add it")
    for name, child in schema.get("properties", {}).items():
        if value.get(name) is not None:  # the API server drops null
            yield from _walk(value[name], child, (*path, name))
