"""Turns pydantic's errors into sentences for a person: the field, what is wrong, and the fix."""

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .foreign import OURS
from .yaml12 import FieldPath

_LIMITS: Final = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entry",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must not hold control characters",
    "enum": "must be one of {expected}",
    "finite_number": "must be a finite number",
}
_KINDS: Final = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "dict": "must be a mapping of fields",
    "model": "must be a mapping of fields",
}


def field_name(path: FieldPath) -> str:
    """A path as users write it, e.g. data.sources[0].path."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def explain(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[FieldPath, str]]:
    """For each problem the path of its field, and one sentence that names field and fix."""
    for details in error.errors(include_url=False):
        if not _is_echo(details):
            yield _place(details, model), _sentence(details, model)


def _place(details: ErrorDetails, model: type[BaseModel]) -> FieldPath:
    """Where the problem is: a rule over several fields stands at their section, and begins with
    the field that it is about."""
    path = details["loc"]
    first = re.match(r"[\w.]+(?= (?!and ))", details["msg"].removeprefix("Value error, "))
    named = first[0] if first and details["type"] == "value_error" else ""
    inside = named in set(_walk(model)) and named.startswith(f"{field_name(path)}.".lstrip("."))
    return tuple(named.split(".")) if inside else path


def _is_echo(details: ErrorDetails) -> bool:
    """A list that is too short only because its wrong entries were taken out."""
    given = details["input"]
    return details["type"] == "too_short" and isinstance(given, list) and bool(given)


def _sentence(details: ErrorDetails, model: type[BaseModel]) -> str:
    kind, path = details["type"], details["loc"]
    name = field_name(path)
    if kind == "value_error":
        message = details["msg"].removeprefix("Value error, ")
        # Validators name their field in full where they can; where not, say which it is.
        return message if not name or _mentions_field(message, model) else f"{name}: {message}"
    if kind == "missing":
        return f"{name} is required: add it"
    if kind == "extra_forbidden":
        return f"{name} is not a field{_suggestion(path, model)}"
    rule = _rule(details)
    return f"{name or 'the file'} {rule}; got {_shown(details['input'])}"


def _rule(details: ErrorDetails) -> str:
    kind = details["type"]
    if kind in _LIMITS:
        return _LIMITS[kind].format(**details.get("ctx", {}))
    return _KINDS.get(kind.split("_")[0], f"is wrong: {details['msg']}")


def _mentions_field(message: str, model: type[BaseModel]) -> bool:
    return any(re.search(rf"\b{re.escape(known)}\b", message) for known in _paths_by_leaf(model))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).lower()


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[DataSource, ...]` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_inner_model(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _fields(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The outside name of each field, with the model inside it if it holds one."""
    return {
        info.alias or name: _inner_model(info.annotation)
        for name, info in model.model_fields.items()
    }


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, inner in _fields(model).items():
        yield prefix + name
        if inner is not None:
            yield from _walk(inner, f"{prefix}{name}.")


@cache
def _paths_by_leaf(model: type[BaseModel]) -> dict[str, str]:
    """Every field in a model and those inside it: its last name, and its full path."""
    return {path.rpartition(".")[2]: path for path in reversed(list(_walk(model)))}


def _foreign(path: FieldPath, model: type[BaseModel]) -> str | None:
    """Our field for another tool's name, where the model has it."""
    wrong = _plain(str(path[-1]))
    section = next((part for part in reversed(path[:-1]) if isinstance(part, str)), "")
    ours = OURS.get(f"{section}.{wrong}") or OURS.get(wrong)
    return ours if ours is not None and re.split(r"\W", ours)[0] in _fields(model) else None


def _suggestion(path: FieldPath, model: type[BaseModel]) -> str:
    """`: did you mean ...?` for a misspelt name or one on the wrong level, else what is known."""
    here: type[BaseModel] | None = model
    for part in path[:-1]:
        if isinstance(part, str) and here is not None:
            here = _fields(here).get(part)
    wrong = str(path[-1])
    names = list(_fields(here)) if here is not None else []
    same = next((name for name in names if _plain(name) == _plain(wrong)), None)
    everywhere = {_plain(leaf): full for leaf, full in _paths_by_leaf(model).items()}
    elsewhere = _foreign(path, model) or everywhere.get(_plain(wrong))
    close = difflib.get_close_matches(_plain(wrong), [_plain(name) for name in names], 1, 0.75)
    if same is None and elsewhere is None and close:
        same = next(name for name in names if _plain(name) == close[0])
    if best := same or elsewhere:
        return f": did you mean {best}?"
    return f": remove it, or use one of {', '.join(sorted(names))}" if names else ": remove it"
