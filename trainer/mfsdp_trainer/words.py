"""English for messages: the one place that knows a plural and a list. Imports nothing but types."""

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 pod`, `2 pods`; `plural` for nouns that take more than an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
