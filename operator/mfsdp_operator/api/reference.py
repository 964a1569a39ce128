"""docs/reference/api.md: every field of the API as a table, written from the CRD's own schema, and
the words in `status` (`reference_words.py`)."""

from collections.abc import Iterator
from typing import Any

from . import names
from .reference_words import words
from .refused import REFUSED
from .rules import MUTABLE_FIELDS, RESERVED_POD_FIELDS
from .schema import Schema, at, walk

_HEAD = f"""# API reference: {names.KIND}

`{names.API_VERSION}`, short name `{names.SHORT_NAME}`. Written by `make generate` from the typed
models; the same text as `kubectl explain {names.SHORT_NAME} --recursive`. Of the spec only
{" and ".join(f"`{field}`" for field in MUTABLE_FIELDS)} may change while a job exists.
"""


def reference(crd: dict[str, Any]) -> str:
    """The page, in Markdown."""
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [_HEAD]
    for section in ("spec", "status"):
        parts.append(f"\n## {section}\n\n| field | type | default | |\n|---|---|---|---|\n")
        parts += _rows(section, schema[section])
    parts += ["\n## Refused\n\nThese names are refused with the right one, so that a typo never "]
    parts += ["becomes a default:\n\n| in | written | right |\n|---|---|---|\n"]
    parts += [f"| `{_place(r.parent)}` | `{r.name}` | `{r.write}` |\n" for r in REFUSED]
    parts += words()
    return "".join(parts)


def _rows(section: str, schema: Schema) -> Iterator[str]:
    for path, field in walk(schema):
        parent, _, name = path.rpartition(".")
        if any((r.parent, r.name) == (parent, name) for r in REFUSED):
            continue
        if parent == "template.spec" and name in RESERVED_POD_FIELDS:
            continue
        required = name in at(schema, parent).get("required", ())
        default = "required" if required else _default(field)
        text = field["description"].replace("|", "\\|")
        yield f"| `{section}.{path}` | {_type(field)} | {default} | {text} |\n"


def _place(parent: str) -> str:
    return f"spec.{parent}" if parent else "spec"


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if "items" in field:
        return f"list of {_type(field['items'])}s"
    kind = str(field["type"])
    low, high = field.get("minimum"), field.get("maximum")
    if low is None or high is None:
        return kind
    low_end = "above " if field.get("exclusiveMinimum") else ""
    high_end = "below " if field.get("exclusiveMaximum") else ""
    return f"{kind}, {low_end}{low} to {high_end}{high}"


def _default(field: Schema) -> str:
    default = field.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
