"""YAML is read as YAML 1.2, where PyYAML's 1.1 would change numbers in silence."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsdp_trainer.config.yaml12 import YamlError, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("3e4", 3e4),
        ("-2.5E+3", -2500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+7", 7),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("-.inf", float("-inf")),
        ("'1e-5'", "1e-5"),
        ("e5", "e5"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = parse(f"key: {text}").value["key"]
    assert found == value
    assert type(found) is type(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abcde"), inner),
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcde"), JSON), st.sampled_from([None, 2, "\t"]))
def test_json_is_yaml(value: dict[str, object], indent: int | str | None) -> None:
    assert parse(json.dumps(value, indent=indent)).value == value


def test_a_key_set_twice_names_both_lines() -> None:
    with pytest.raises(YamlError, match="c is set twice, first on line 2: remove one") as caught:
        parse("a: 1\nb: {c: 1,\n  c: 2}")
    assert caught.value.line == 3


def test_a_merge_may_be_overridden() -> None:
    text = "base: &base {a: 1, b: 2}\nmine:\n  <<: *base\n  b: 3\n"
    assert parse(text).value["mine"] == {"a": 1, "b": 3}


def test_lines_of_fields() -> None:
    document = parse("a:\n  b:\n    - x: 1\n    - y: 2\nc: 3\n")
    assert document.line(["a", "b", 1, "y"]) == 4
    assert document.line(["c"]) == 5
    assert document.line(["a", "b", 1, "missing"]) == 4
    assert document.line(["a", "missing"]) == 1


@pytest.mark.parametrize("text", ["a: [1\nb: 2", "a: b: c", "\x00", "- a\nb: 1", "&x *x"])
def test_no_yaml(text: str) -> None:
    with pytest.raises(YamlError, match="not valid YAML"):
        parse(text)


def test_nothing_runs() -> None:
    with pytest.raises(YamlError, match="not valid YAML"):
        parse("a: !!python/object/apply:os.getcwd []")


DEEP = 3000
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n"
    for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\nb: !!set {c, d}", 2, "!!set is no kind of value here: remove it"),
        ("a: !!binary aGVsbG8=", 1, "!!binary is no kind of value"),
        ("a: !!timestamp hello", 1, "!!timestamp is no kind of value"),
        ("a: !foo bar", 1, "!foo is no kind of value"),
        ("a: !!int hello", 1, "'hello' is not what !!int means"),
        ("a: !!bool hello", 1, "'hello' is not what !!bool means"),
        ("a: !!float hello", 1, "'hello' is not what !!float means"),
        ("a:\n  - " + "9" * 5000, 2, "a number of 5000 digits"),
        ("? [a]\n: b", 1, "a key must be text"),
        ("a: &a {b: *a}", 1, "nested deeper than 64 levels"),
        ("a: " + "[" * 80 + "]" * 80, 1, "nested deeper than 64 levels"),
        ("a: " + "[" * DEEP + "]" * DEEP, None, "nested too deeply"),
        (LAUGHS, 1, "more than 100,000 values, aliases written out"),
    ],
)
def test_only_what_json_can_say(text: str, line: int | None, says: str) -> None:
    with pytest.raises(YamlError, match="not valid YAML: ") as caught:
        parse(text)
    assert says in str(caught.value)
    assert caught.value.line == line


def test_keys_are_text() -> None:
    assert parse("1: a\ntrue: b\n1.5: c\n~: d").value == {
        "1": "a",
        "true": "b",
        "1.5": "c",
        "~": "d",
    }
