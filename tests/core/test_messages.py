"""Values in messages: one bounded line that every terminal shows, with the nearest known name; progress of loops."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import (
    ConfigurationError,
    MMLDLMError,
    UnsafePathError,
    WorkerFailed,
    duration,
    errors,
    escape,
    nearest,
    progress,
    purposeful,
    reason_of,
    show,
    summarise,
)
from mm_ldlm.core.progress import shown


class Odd(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


@given(st.recursive(st.one_of(st.text(), st.binary(), st.floats(), st.integers(), st.none()), st.lists, max_leaves=40))
def test_any_value_is_shown_on_one_short_printable_line(value: Any) -> None:
    shown = show(value)
    assert shown.isprintable()
    assert len(shown) <= errors.LONGEST + 3


def test_large_and_odd_values_are_shown_too() -> None:
    for value in ("a" * 10**7, list(range(10**6)), Odd(), {"x": ["y" * 10**6] * 10**5}, 10**5000):
        assert len(show(value)) <= errors.LONGEST + 3
    assert [show(value)[-4:] for value in (dict.fromkeys(range(99)), [1] * 99)] == ["...}", "...]"]


def test_any_exception_is_one_short_line() -> None:
    for error in (Odd(), ValueError("a\nb" * 10**6), RuntimeError("\ud800"), ConfigurationError("x")):
        assert reason_of(error).isprintable()
        assert len(reason_of(error)) <= 303


@given(st.text())
def test_no_message_repeats_data_without_bound(text: str) -> None:
    message = str(MMLDLMError(text * 1000 + "\n" * 1000))
    message.encode()
    assert str(MMLDLMError("\n" * (errors.MOST_LINES - 1))).count("\n") == errors.MOST_LINES - 1
    assert len(message) <= (errors.MOST_LINES + 1) * (errors.LONGEST + 4)


@given(st.text())
def test_escaped_texts_are_printable_and_others_unchanged(text: str) -> None:
    assert escape(text).isprintable()
    if text.isprintable():
        assert escape(text) == text


@given(st.floats(0, 10**4))
def test_durations_grow(seconds: float) -> None:
    parts = [int(part) for part in duration(seconds).split() if part.isdigit()]
    unit = {"s": 1, "min": 60, "h": 3600}[duration(seconds).split()[1]]
    found = parts[0] * unit + (parts[1] * unit // 60 if parts[1:] else 0)
    assert abs(found - seconds) <= (60 if unit == 3600 else 0.5)


def test_the_nearest_name_is_another_one_that_is_near() -> None:
    known = ["confidence", "ancestral"]
    assert "confidence" in nearest("confidense", known)
    assert nearest("confidence", known) == nearest("zzz", known) == nearest(3, known) == ""


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), min_size=1, max_size=30))
def test_many_problems_are_at_most_three_lines(problems: list[str]) -> None:
    lines = summarise(problems).split("\n")
    assert len(lines) <= 3
    assert lines[0] == errors.shorten(problems[0])
    assert len(problems) <= 3 or lines[2].startswith(f"and {len(problems) - 2} more: ")
    assert len(summarise([problem * 5000 for problem in problems])) < 2000


@pytest.mark.parametrize(
    "error",
    [WorkerFailed("x", error_class="KeyError"), UnsafePathError("/root", "../x", "leads out"), MMLDLMError("x")],
)
def test_an_error_is_the_same_in_another_process(error: MMLDLMError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_reason_names_the_last_own_line_above_the_code_of_others() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("")
    line = test_a_reason_names_the_last_own_line_above_the_code_of_others.__code__.co_firstlineno + 2
    assert reason_of(raised.value).endswith(f"(char 0) at test_messages.py:{line}")


def test_the_first_error_on_purpose_of_a_chain_is_found() -> None:
    inner = ConfigurationError("x")
    outer = RuntimeError("y")
    outer.__cause__ = inner
    assert purposeful(outer) is purposeful(inner) is inner
    assert purposeful(RuntimeError("z")) is None


def test_a_long_loop_is_a_line_of_the_log_at_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    assert [*shown("abc", total=3, desc="soon", unit="rows")] == [*"abc"]
    assert not caplog.text
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with shown(desc="counted", unit="rows") as bar:
        bar.update(7)
    assert [*shown("abc", total=3, desc="looped", unit="rows")] == [*"abc"]
    assert all(words in caplog.text for words in ("counted: 7 rows", "looped: 3 of 3 rows"))
    assert not capsys.readouterr().err.strip()
