"""From pydantic's JSON schema to the structural OpenAPI v3 that a CustomResourceDefinition takes.

What has to change: no `$ref`, no `anyOf` with null, exclusive bounds as booleans, objects that
default to `{}` so that the defaults inside them appear, and a description on every field.
Keys that start with `x-kubernetes-` pass through: the models say what a list's keys are.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

type Schema = dict[str, Any]

_KEPT: Final = (
    *("description", "type", "format", "enum", "pattern", "default", "required"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
)
"""Keywords that are taken over as they are, in the order in which they are written."""
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def structural(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The structural schema of a model. `defaults=False` leaves defaults out: the API server must
    not invent a status."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}), defaults)


def _convert(node: Mapping[str, Any], defs: Mapping[str, Any], defaults: bool) -> Schema:
    node = _flatten(node, defs)
    result: Schema = {
        key: value for key, value in node.items() if key in _KEPT or key.startswith("x-kubernetes-")
    }
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    _bounds(node, result)
    if not defaults or result.get("default", "") is None:
        result.pop("default", None)
    if "properties" in node:
        result["properties"] = {
            name: _convert(child, defs, defaults) for name, child in node["properties"].items()
        }
        if "default" in result:
            result["default"] = {}
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], defs, defaults)
    elif node.get("type") == "object":
        result[PRESERVE] = True
    if "items" in node:
        result["items"] = _convert(node["items"], defs, defaults)
        # Without keys a list is replaced whole, also by server-side apply: say so.
        result.setdefault("x-kubernetes-list-type", "atomic")
        result.pop("default", None)
    return result


def _flatten(node: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Follow `$ref` and drop the null of `anyOf`; what stands beside them wins."""
    flat = dict(node)
    options = [option for option in flat.pop("anyOf", ()) if option.get("type") != "null"]
    if options:
        if len(options) > 1:
            raise TypeError(f"a custom resource cannot hold a union: {node}")
        flat = _flatten(options[0], defs) | flat
    if "$ref" in flat:
        target = defs[flat.pop("$ref").removeprefix("#/$defs/")]
        flat = _flatten(target, defs) | flat
    return flat


def _bounds(node: Mapping[str, Any], result: Schema) -> None:
    for kind in ("minimum", "maximum"):
        exclusive = node.get("exclusive" + kind.capitalize())
        if exclusive is not None:
            result[kind] = exclusive
            result["exclusive" + kind.capitalize()] = True


def at(schema: Schema, path: str) -> Schema:
    """The schema of a field, by a path like `data.sources[].path`; the root for an empty path."""
    for part in filter(None, path.replace("[]", ".[]").split(".")):
        schema = schema["items"] if part == "[]" else schema["properties"][part]
    return schema


def walk(schema: Schema, path: str = "") -> list[tuple[str, Schema]]:
    """Every field with its path, depth first, in the order of declaration; lists as `name[]`."""
    found: list[tuple[str, Schema]] = []
    for name, child in schema.get("properties", {}).items():
        child_path = f"{path}.{name}" if path else name
        found.append((child_path, child))
        inner, suffix = (child["items"], "[]") if "items" in child else (child, "")
        found += walk(inner, child_path + suffix)
    return found
