"""From a record to a document: its text, its conversation, or its tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from mfsdp_trainer.config import DataSource
from mfsdp_trainer.config.data import DataContent, DataFormat
from mfsdp_trainer.models.loss import IGNORE

from .bad import BadRecordError, BadRecords
from .documents import Content, HeldOut, Messages, Piece, TokenRow, content_bytes
from .records import records
from .sources import source_files
from .text import text_document

_LABELS: Final = "labels"
"""Column beside tokens that says which of them are trained on, as everybody calls it."""


def documents(sources: Sequence[DataSource], held_out: HeldOut, bad: BadRecords) -> Iterator[Piece]:
    """Every document of the sources that is not empty, in order.

    Raises DataError for what cannot be read, and past the limit of `bad`.
    """
    for source in sources:
        if source.format is DataFormat.TEXT:
            for file in source_files(source):
                yield from text_document(file, held_out, source_code=source.builtin is not None)
        else:
            yield from _recorded(source, held_out, bad)


def _recorded(source: DataSource, held_out: HeldOut, bad: BadRecords) -> Iterator[Piece]:
    for where, record in records(source, columns(source), bad):
        try:
            content = _content(record, source)
        except BadRecordError as error:
            bad.add(where, error)
            continue
        if content is not None:
            yield Piece(where, content, held_out(content_bytes(content)))


def columns(source: DataSource) -> list[str]:
    """What is read of a record; the first is required."""
    return {
        DataContent.TEXT: [source.text_field],
        DataContent.CHAT: [source.messages_field],
        DataContent.TOKENS: [source.tokens_field, _LABELS],
    }[source.content]


def _content(record: dict[str, Any], source: DataSource) -> Content | None:
    """The document of a record; None for an empty one. Raises BadRecordError."""
    value = record.get(columns(source)[0])
    if source.content is DataContent.TEXT:
        if not isinstance(value, str):
            raise _unlike(record, source.text_field, "text", "textField")
        return _without_surrogates(value) or None
    if source.content is DataContent.CHAT:
        if not isinstance(value, list):
            raise _unlike(record, source.messages_field, "list of messages", "messagesField")
        return _messages(value)
    if not isinstance(value, list):
        raise _unlike(record, source.tokens_field, "list of token ids", "tokensField")
    return _tokens(value, record.get(_LABELS)) if value else None


def _unlike(record: dict[str, Any], name: str, needed: str, field: str) -> BadRecordError:
    """What is said of a record that has nothing, or something else, under a name."""
    fix = f"set {field} of this data source"
    if name in record:
        found = _kind(record[name])
        return BadRecordError(f"no {needed} but {found} under {name!r}: {fix}, or repair it")
    keys = ", ".join(sorted(map(str, record))[:8])
    return BadRecordError(f"no {needed} under {name!r} (it has: {keys}): {fix}")


def _kind(value: Any) -> str:
    """What a value is, in a message."""
    return "null" if value is None else f"a value of type {type(value).__name__}"


def _without_surrogates(text: str) -> str:
    """JSON can escape half a character, which no tokenizer takes: U+FFFD stands for each."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _messages(value: list[Any]) -> Messages:
    if not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in value
    ):
        raise BadRecordError("a message is no object with a role (and content)")
    if not any(message["role"] == "assistant" for message in value):
        raise BadRecordError("no message has the role assistant: nothing to train on")
    for number, message in enumerate(value, start=1):
        _require_content(message, f"message {number} ({message['role']})")
    return [
        {key: _clean(part) for key, part in message.items() if part is not None}
        for message in value
    ]


def _require_content(message: dict[str, Any], which: str) -> None:
    """Templates write what is no text as Python would, and nothing where there is nothing."""
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise BadRecordError(
            f"content of {which} is {_kind(content)} where text is needed: write it as one string"
        )
    if content is None and message["role"] == "assistant" and not message.get("tool_calls"):
        raise BadRecordError(f"{which} has neither content nor tool_calls: nothing to train on")


def _clean(part: Any) -> Any:
    return _without_surrogates(part) if isinstance(part, str) else part


def _tokens(ids: list[Any], labels: list[Any] | None) -> TokenRow:
    try:
        row = np.asarray(ids)
        marks = None if labels is None else np.asarray(labels)
    except ValueError as error:
        raise BadRecordError(f"not a list of token ids: {error}") from error
    if row.ndim != 1 or row.dtype.kind not in "iu":
        raise BadRecordError("not a list of token ids")
    row = row.astype(np.int64)
    if marks is None:
        return TokenRow(row, None)
    trained = marks != IGNORE
    if marks.shape != row.shape or (marks[trained] != row[trained]).any():
        raise BadRecordError(
            f"{_LABELS} must have a token's id, or {IGNORE}, at the place of the token itself "
            "(nothing shifted)"
        )
    return TokenRow(row, trained)
