"""Conversations: written by the template, trained on where the assistant speaks."""

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.data.kit import documents, streams, trained, write_lines

from mfsdp_trainer.data.tokenizer import byte_tokenizer
from mfsdp_trainer.errors import ConfigError, DataError

TAGGED = (
    "{% for m in messages %}<{{ m.role[0] }}>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}"
    "{% else %}{{ m.content }};{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
PLAIN = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<{{ m.role[0] }}>"
    "{% if loop.last or m.role == 'user' %}{{ m.content }}"
    "{% else %}{{ m.content | upper }}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}"
    + PLAIN
)
TALK = [
    {"role": "user", "content": "hé"},
    {"role": "assistant", "content": "hi ü"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]
WHOLE = "<u>hé;<a>hi ü;<u>2+2;<a>4;"


def chat(path: Path, template: str, *records: Any, **data: Any) -> Any:
    (path / "template.jinja").write_text(template, encoding="utf-8")
    file = write_lines(path / "chat.jsonl", *records)
    source = {"path": str(file), "format": "jsonl", "content": "chat"}
    tokenizer = {"chatTemplate": str(path / "template.jinja")}
    return streams(path, source, tokenizer=tokenizer, **data)[0]


@pytest.mark.parametrize("template", [TAGGED, PLAIN], ids=["tags", "prefixes"])
def test_only_what_the_assistant_says_is_trained_on(tmp_path: Path, template: str) -> None:
    stream = chat(tmp_path, template, {"messages": TALK})
    assert bytes(stream.tokens.astype("u1")).decode() == WHOLE
    # A dot a byte: é is two.
    assert trained(stream).encode("latin-1").decode() == "." * 10 + "hi ü;" + "." * 10 + "4;"


def test_conversations_follow_each_other(tmp_path: Path) -> None:
    stream = chat(tmp_path, PLAIN, *[{"messages": TALK[:2]}, {"messages": TALK}] * 3)
    assert [len(document) for document in documents(stream)] == [16, 28] * 3
    assert trained(stream) == trained(
        chat(tmp_path, TAGGED, *[{"messages": TALK[:2]}, {"messages": TALK}] * 3)
    )


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (
            FORGETFUL,
            TALK,
            "renders a turn otherwise once others follow.*set data.tokenizer.chatTemp",
        ),
        (STRICT, TALK[1:], "the chat template refuses it: begin with the user"),
        (PLAIN, TALK[:1], "no message has the role assistant: nothing to train on"),
        (PLAIN, [{"from": "gpt", "value": "x"}], "a message is no object with a role"),
        (PLAIN, "text", "no list of messages but a value of type str under 'messages': set mess"),
        (PLAIN, None, "no list of messages but null under 'messages'"),
        *(
            (
                PLAIN,
                [{"role": "user", "content": content}, TALK[1]],
                rf"content of message 1 \(user\) is a value of type {kind} where text is needed",
            )
            for content, kind in (
                ([{"type": "text", "text": "x"}], "list"),
                ({}, "dict"),
                (3, "int"),
            )
        ),
        *(
            (
                PLAIN,
                [*TALK[:2], turn],
                r"message 3 \(assistant\) has neither content nor tool_calls",
            )
            for turn in ({"role": "assistant"}, {"role": "assistant", "content": None})
        ),
        (PLAIN + "{{ 1 // 0 }}", TALK, "the chat template refuses it: .*zero"),
        (TAGGED + "{{ range(999999) }}", TALK, "the chat template refuses it: Range too big"),
        (
            "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}" + PLAIN,
            TALK,
            "the chat template refuses it: .*recursion",
        ),
        (TAGGED.replace("'assistant'", "'nobody'"), TALK, "marks nothing of it as the assistant's"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, template: str, messages: Any, says: str
) -> None:
    with pytest.raises(DataError, match=rf"chat\.jsonl:1: .*{says}"):
        chat(tmp_path, template, {"messages": messages})


def test_a_turn_that_only_calls_tools_is_one(tmp_path: Path) -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}]
    talk = [TALK[0], {"role": "assistant", "content": None, "tool_calls": calls}]
    template = PLAIN.replace("{{ m.content }}", "{{ m.content or m.tool_calls[0].function.name }}")
    assert trained(chat(tmp_path, template, {"messages": talk})).endswith(".f;")


@pytest.mark.parametrize("wrong", ["{% for %}", "{{ x | nothing }}", "{% if x %}"])
def test_a_file_that_is_no_template_is_named_with_its_line(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^data\.tokenizer\.chatTemplate .*template\.jinja:3: not a chat template: ",
    ):
        chat(tmp_path, f"{{# a #}}\n\n{wrong}", {"messages": TALK}, maxBadRecords=9)


def test_a_wrong_template_of_the_tokenizer_itself_is_told(tmp_path: Path) -> None:
    byte_tokenizer().transformers.save_pretrained(tmp_path / "tok")
    (tmp_path / "tok" / "chat_template.jinja").write_text("\n{% for %}", encoding="utf-8")
    file = write_lines(tmp_path / "chat.jsonl", {"messages": TALK})
    source = {"path": str(file), "format": "jsonl", "content": "chat"}
    tokenizer = {"kind": "huggingface", "path": str(tmp_path / "tok")}
    with pytest.raises(ConfigError, match="the tokenizer's own chat template:2: not a chat temp"):
        streams(tmp_path, source, tokenizer=tokenizer)


def test_a_template_that_forgets_works_for_one_turn(tmp_path: Path) -> None:
    assert trained(chat(tmp_path, FORGETFUL, {"messages": TALK[:2]})).endswith(".hi \xc3\xbc;")


def test_a_tokenizer_without_a_template_says_so(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "chat.jsonl", {"messages": TALK})
    source = {"path": str(file), "format": "jsonl", "content": "chat"}
    with pytest.raises(ConfigError, match=r"set data\.tokenizer\.chatTemplate to a file with one"):
        streams(tmp_path, source)


def test_another_template_makes_other_tokens(tmp_path: Path) -> None:
    first = chat(tmp_path, PLAIN, {"messages": TALK}).tokens.tolist()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run").symlink_to(tmp_path / "run")
    second = chat(tmp_path / "other", PLAIN.replace(";", "|"), {"messages": TALK}).tokens.tolist()
    assert second == [ord("|") if token == ord(";") else token for token in first]
