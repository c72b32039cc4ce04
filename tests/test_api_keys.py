"""Keys of services are read from the environment and shown nowhere."""

from __future__ import annotations

import copy
import pickle

import pytest

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.extras.http_encoder import keys as api_keys
from mm_ldlm.extras.http_encoder.keys import ApiKey, read_key


def test_a_key_is_read_and_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " abc-123\n")
    found = read_key("SOME_KEY", parameter="encoder.key_variable")
    assert found.reveal() == "abc-123"
    assert repr(found) == str(found) == f"{found}" == "***"
    assert found.redact("key abc-123 is wrong, abc-123") == "key *** is wrong, ***"
    for spread in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="is not pickled"):
            spread(found)
    assert not hasattr(ApiKey("a"), "__dict__")


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_a_missing_key_names_variable_and_parameter(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    assert not api_keys.is_set("SOME_KEY")
    with pytest.raises(ConfigurationError, match=r"'x\.y': expected a key in the environment variable SOME_KEY, found"):
        read_key("SOME_KEY", parameter="x.y")


@pytest.mark.parametrize("value", ["abc\r\nX-Other: 1", "abc def", "schlüssel", "abc\x7f"])
def test_a_value_that_no_header_can_contain_is_refused_unseen(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigurationError, match="printable ASCII") as caught:
        read_key("SOME_KEY", parameter="x.y")
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "good"), [("OPENAI_API_KEY", True), ("_k1", True), ("1K", False), ("sk-abc", False), ("", False)]
)
def test_names_of_variables(name: str, good: bool) -> None:
    assert api_keys.is_variable_name(name) is good
