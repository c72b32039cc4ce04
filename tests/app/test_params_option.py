"""The text of `--params`: documented forms, any value as JSON, and any text at all."""

import json
import shlex
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.app.params_option import parse_params
from mm_ldlm.core import ConfigurationError, override

KEYS = st.text(string.ascii_lowercase, min_size=1, max_size=5)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text(string.printable, max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_values_that_are_written_as_json_are_read(given_values: dict[str, Any]) -> None:
    text = ",".join(f"{key}={json.dumps(value)}" for key, value in given_values.items())
    assert parse_params(text) == given_values


@given(st.text(string.printable, max_size=8) | st.sampled_from(["true", "No", "a b, c", "*.txt"]) | st.integers())
def test_an_option_that_a_message_proposes_can_be_pasted(value: Any) -> None:
    assert parse_params(shlex.split(override("a.b", value))[1]) == {"a": {"b": value}}


@given(st.text(string.printable + "äß€[]{}=,:'\"&*", max_size=40))
def test_any_text_becomes_parameters_or_one_refusal(text: str) -> None:
    try:
        found = parse_params(text)
    except ConfigurationError as error:
        assert str(error).startswith("--params")  # noqa: PT017
    else:
        assert all(isinstance(key, str) for key in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1,a.c=2", {"a": {"b": 1, "c": 2}}), ("a=1e-3, b = x ", {"a": 1e-3, "b": "x"}), ("", {}),
        ("f=[a.npy,b.npy],t=\"a, b\"", {"f": ["a.npy", "b.npy"], "t": "a, b"}), ("p=*.txt", {"p": "*.txt"}),
        ("m=[{name: a, env: x}, {name: b}]", {"m": [{"name": "a", "env": "x"}, {"name": "b"}]}), ("t=it's", {"t": "it's"}),
        ("t=a: b #c", {"t": "a: b #c"}), ("t=['it''s, so']", {"t": ["it's, so"]}), ("t=x=y", {"t": "x=y"}),
        ("a={b: 1},a.c=2", {"a": {"b": 1, "c": 2}}), ("a=1,a=2", {"a": 2}), ("a={b: 1},a.b=2", {"a": {"b": 2}}),
        ("a=null, b . c =true", {"a": None, "b": {"c": True}}),
        ("t=[it's, so]", {"t": ["it's", "so"]}), ("d=2026-01-01", {"d": "2026-01-01"}), ("t=x[1]", {"t": "x[1]"}),
        ("a=x],,b=1,", {"a": "x]", "b": 1}), ("a=]", {"a": "]"}),
    ],
)  # fmt: skip
def test_documented_forms_are_read(text: str, expected: dict[str, Any]) -> None:
    assert parse_params(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "=1",
        "a.=1",
        ".a=1",
        "a=[1,2",
        "a={b",
        "a='x",
        "a=[1]x,b=2",
        "a=1,b",
        "a." * 900 + "b=1," + "a." * 900 + "c=2",
    ],
)
def test_a_fault_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--params"):
        parse_params(text)
