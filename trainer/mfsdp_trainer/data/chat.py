"""Conversations as text, with the parts that the assistant wrote: those are trained on.

A chat template says which they are with `{% generation %}` tags. Where it has none, a turn is what
rendering the conversation up to it adds to the prompt for it. That only holds if later turns do not
change how earlier ones are rendered, which is checked for each conversation.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from jinja2 import TemplateSyntaxError
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from mfsdp_trainer.errors import ConfigError, DataError, said

from .bad import BadRecordError
from .documents import Messages

_GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")

_render: Any = render_jinja_template
"""Untyped: its annotations say less than it returns."""

type Spans = list[tuple[int, int]]
"""Parts of a text: first character, and the one after the last."""


@cache
def read_template(path: str) -> str:
    """The chat template in a file, as it was when first read. Raises DataError, and ConfigError
    naming the line where it is no template."""
    try:
        template = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"data.tokenizer.chatTemplate {path}: cannot be read: {said(error)}"
        ) from error
    _compile(template, f"data.tokenizer.chatTemplate {path}")
    return template


def _compile(template: str, where: str) -> None:
    """Raises ConfigError for what is no template, before a record is read."""
    try:
        _render(conversations=[], chat_template=template)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{where}:{error.lineno}: not a chat template: {said(error)}") from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: not a chat template: {said(error)}") from error


def _template(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        template: str = tokenizer.get_chat_template()
    except ValueError as error:  # several, and none is the default
        raise ConfigError(
            f"data.tokenizer.chatTemplate: the tokenizer does not say which template to use, set a "
            f"file with one: {said(error)}"
        ) from error
    _compile(template, "data.tokenizer: the tokenizer's own chat template")
    return template


class ChatTemplate:
    """How a tokenizer writes conversations."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ConfigError for a tokenizer without a template that is one, or without offsets."""
        if not tokenizer.chat_template:
            raise ConfigError(
                "data.sources: content chat needs a chat template, and the tokenizer has none: set "
                "data.tokenizer.chatTemplate to a file with one"
            )
        if not tokenizer.is_fast:
            raise ConfigError(
                "data.sources: content chat needs a tokenizer with a tokenizer.json, which says "
                "from where in the text each token is"
            )
        self._tokenizer = tokenizer
        self._template: str = _template(tokenizer)
        self._marks = _GENERATION.search(self._template) is not None

    def render(self, messages: Messages) -> tuple[str, Spans]:
        """The text of a conversation, and what of it the assistant wrote.

        Raises BadRecordError where the template refuses it, or does not tell what that is.
        """
        try:
            text, spans = self._rendered(messages) if self._marks else self._by_prefix(messages)
        except (BadRecordError, MemoryError):
            raise
        except Exception as error:  # a template may compute anything
            raise BadRecordError(f"the chat template refuses it: {said(error)}") from error
        if not any(begin < end for begin, end in spans):
            raise BadRecordError("the chat template marks nothing of it as the assistant's")
        return text, spans

    def _rendered(self, messages: Messages, *, prompt: bool = False) -> tuple[str, Spans]:
        texts, spans = _render(
            conversations=[messages],
            chat_template=self._template,
            return_assistant_tokens_mask=self._marks,
            add_generation_prompt=prompt,
            **self._tokenizer.special_tokens_map,
        )
        marked = spans[0] if self._marks else []
        return texts[0], [(int(begin), int(end)) for begin, end in marked]

    def _by_prefix(self, messages: Messages) -> tuple[str, Spans]:
        whole, _ = self._rendered(messages)
        spans = []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, _ = self._rendered(messages[:turn], prompt=True)
            after, _ = self._rendered(messages[: turn + 1])
            if not (after.startswith(before) and whole.startswith(after)):
                raise BadRecordError(
                    "the chat template has no {% generation %} tags and renders a turn otherwise "
                    "once others follow, so that what the assistant wrote cannot be told: set "
                    "data.tokenizer.chatTemplate to a template with such tags"
                )
            spans.append((len(before), len(after)))
        return whole, spans

    def end_of_turn(self) -> int | None:
        """The token that ends what the assistant says; None where that is no special token."""
        talk: Messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]
        try:
            ((ids, trained),) = self.tokens([self.render(talk)])
        except BadRecordError:  # a template of other conversations than this one
            return None
        special = self._tokenizer.added_tokens_decoder
        ends = [int(token) for token in ids[trained] if int(token) in special]
        return ends[-1] if ends else None

    def tokens(
        self, rendered: Sequence[tuple[str, Spans]]
    ) -> list[tuple[NDArray[np.uint32], NDArray[np.bool_]]]:
        """Ids of rendered conversations, and which of them are trained on: those that begin in
        what the assistant wrote. Special tokens that the text spells out are meant as such."""
        encoded: Any = self._tokenizer(
            [text for text, _ in rendered],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        pairs = zip(encoded["input_ids"], encoded["offset_mapping"], rendered, strict=True)
        return [
            (np.asarray(ids, dtype=np.uint32), _within(np.asarray(offsets), spans))
            for ids, offsets, (_, spans) in pairs
        ]


def _within(offsets: NDArray[np.int64], spans: Spans) -> NDArray[np.bool_]:
    """Which tokens begin inside a span; `offsets` [tokens, 2]."""
    begins = offsets[:, 0]
    edges = np.asarray(spans).flatten()
    inside = np.searchsorted(edges, begins, side="right") % 2 == 1
    trained: NDArray[np.bool_] = inside & (offsets[:, 1] > begins)
    return trained
