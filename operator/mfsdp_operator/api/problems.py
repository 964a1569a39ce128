"""Turns what pydantic found wrong into lines for a person: one a problem, field first, fix last.

`parse_job` uses it for the operator's conditions; the `mfsdp` command reads files through the
trainer's own loader, which knows lines as well.
"""

from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails


class InvalidSpecError(ValueError):
    """A job that cannot run as written. `problems` holds one line for each thing to change."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def describe(error: ValidationError, root: str) -> tuple[str, ...]:
    """One line for each problem, its path starting at `root`, for instance `spec`."""
    return tuple(_line(details, root) for details in error.errors(include_url=False))


def _line(details: ErrorDetails, root: str) -> str:
    path = _path(root, details["loc"])
    if details["type"] == "value_error":
        # Our own rules already name their fields and the fix.
        return f"{path}: {details['ctx']['error']}"
    if details["type"] == "extra_forbidden":
        return f"{path}: no such field"
    if details["type"] == "missing":
        return f"{path}: required"
    return f"{path}: {_lower_first(details['msg'])}, not {_short(details['input'])}"


def _path(root: str, loc: tuple[int | str, ...]) -> str:
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
