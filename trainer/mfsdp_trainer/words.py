"""English for messages: the one place that knows a plural. Imports nothing."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 pod`, `2 pods`; `plural` for nouns that take more than an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
