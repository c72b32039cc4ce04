"""Durations, lists of problems and shown values at the limits of their forms."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import runpy
from typing import Any, Literal

import click
import pytest

import mm_ldlm
from mm_ldlm import cli, settings
from mm_ldlm.checkpoints import reference
from mm_ldlm.config import PositiveInt, config, parse
from mm_ldlm.errors import ConfigurationError, StoreError
from mm_ldlm.kinds import MARK
from mm_ldlm.messages import about, duration, escape, nearest, shorten, show, summarise
from mm_ldlm.overrides import nested, parse_params

MINUTE, HOUR = 60, 3600


@pytest.mark.parametrize(
    ("seconds", "exact", "rounded"),
    [
        (0, "0 s", "about 5 s"), (7.4, "7 s", "about 5 s"), (8, "8 s", "about 10 s"), (89.4, "89 s", "about 90 s"),
        (90, "1 min 30 s", "about 2 min"), (149, "2 min 29 s", "about 2 min"), (151, "2 min 31 s", "about 3 min"),
        (89 * MINUTE, "89 min 00 s", "about 89 min"), (90 * MINUTE - 0.6, "89 min 59 s", "about 1 h 30 min"),
        (90 * MINUTE, "1 h 30 min", "about 1 h 30 min"), (2 * HOUR, "2 h 00 min", "about 2 h 00 min"),
        (25 * HOUR + 61, "25 h 01 min", "about 25 h 01 min"),
    ],
)  # fmt: skip
def test_a_time_is_written_in_the_unit_that_fits(seconds: float, exact: str, rounded: str) -> None:
    assert (duration(seconds), about(seconds)) == (exact, rounded)


@pytest.mark.parametrize("count", [1, 3, 4, 14, 15])
def test_the_third_problem_and_those_after_it_are_named(count: int) -> None:
    """Up to twelve names, each of at most 120 characters."""
    problems = [f"parameter 'p{n}{'x' * 200 if n == 3 else ''}': wrong {n}." for n in range(count)]
    lines = summarise(problems).splitlines()
    if count <= 3:
        assert lines == problems
        return
    names = [shorten(problem.partition(":")[0], 120) for problem in problems[2:14]]
    end = "; …" if count > 14 else ""
    assert lines == [*problems[:2], f"and {count - 2} more: {'; '.join(names)}{end}"]


def test_a_problem_of_several_lines_counts_as_many() -> None:
    assert summarise(["a: 1\nb: 2", "c: 3"]) == "a: 1\nb: 2\nc: 3"
    assert summarise(["a: 1\nb: 2", "c: 3", "d: 4"]) == "a: 1\nb: 2\nand 2 more: c; d"
    assert len(summarise(["x" * 5000])) < 1300


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"), ("\udce9", "\\udce9"), ("größe 図", "größe 図"), ("a\tb", "a\\tb"),
     ("\u200b", "\\u200b")],
)  # fmt: skip
def test_what_a_terminal_cannot_show_is_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_value_is_shown_to_its_limits() -> None:
    assert show(list(range(12))) == str(list(range(12)))
    assert show(list(range(13))).endswith("11, ...]")
    assert show("x" * 300, 80) == shorten(show("x" * 300), 80)
    assert len(show("x" * 300, 80)) < 90
    assert nearest("training" + "x" * 92, ["training" + "x" * 92]) == f" Did you mean 'training{'x' * 92}'?"
    assert nearest("abcd", ["abxy"], cutoff=0.4) == " Did you mean 'abxy'?"
    assert nearest("abcd", ["abxy"]) == ""


# -- parameters --------------------------------------------------------------------------------------------------------


@config
class Inner:
    size: PositiveInt = 1


@config
class Outer:
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] | None = None
    ratio: float = 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inner": {"sise": 1}}, "'o.inner.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"several": [{}, {"sise": 1}]}, "'o.several.1.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"by_name": {"a": {"sise": 1}}}, "'o.by_name.a.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"rato": 1}, "'o.rato' is not known. Did you mean 'ratio'? Known here: inner, several, by_name, ratio."),
        ({"ratio": float("nan")}, "'o.ratio': Input should be a finite number (found nan)."),
        ({"ratio": float("-inf")}, "'o.ratio': Input should be a finite number (found -inf)."),
        ({"several": [{"size": 0}]}, "'o.several.0.size': Input should be greater than 0 (found 0)."),
    ],
)
def test_a_refused_parameter_is_named_with_the_keys_of_its_own_section(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(Outer, given, at="o")
    assert str(error.value) == f"parameter {message}"


def test_a_configuration_that_is_made_in_code_is_named_by_its_class() -> None:
    with pytest.raises(ConfigurationError, match=r"^parameter 'Inner\.size': Input should be greater than 0"):
        Inner(size=0)
    with pytest.raises(ConfigurationError, match=r"^parameter 'Inner\.sise' is not known"):
        Inner(sise=3)  # type: ignore[call-arg]

    @config
    class Wrong:
        size: PositiveInt = 0

    with pytest.raises(ConfigurationError, match=r"^parameter 'Wrong\.size': "):
        Wrong()


def test_what_a_configuration_accepts_is_decided_where_it_is_declared() -> None:
    """Numbers that are finite, of the declared type or a text of one, by name, once and for all."""

    @config
    class Made:
        ratio: float = 0.5
        size: PositiveInt = 1
        word: Literal["alpha", "beta"] = "alpha"
        address: str = ""

        def __post_init__(self) -> None:
            if self.address:
                raise ValueError(f"no such address as {self.address}")

    for wrong, message in (
        ({"ratio": math.nan}, "'m.ratio': Input should be a finite number (found nan)."),
        ({"ratio": -math.inf}, "'m.ratio': Input should be a finite number (found -inf)."),
        ({"size": "x"}, "'m.size': Input should be a valid integer, unable to parse string as an integer (found 'x')."),
        ({"word": "alhpa"}, "'m.word': Input should be 'alpha' or 'beta' (found 'alhpa'). Did you mean 'alpha'?"),
        ({"word": 3}, "'m.word': Input should be 'alpha' or 'beta' (found 3)."),
        ({"other": 1}, "'m.other' is not known. Known here: ratio, size, word, address."),
        ({"address": "x"}, "'m': no such address as x."),
    ):
        with pytest.raises(ConfigurationError) as error:
            parse(Made, wrong, at="m")
        assert str(error.value) == f"parameter {message}"
    with pytest.raises(ConfigurationError, match=r"no such address as https://\*\*\*@host") as error:
        Made(address="https://me:secretword@host")
    assert "secretword" not in str(error.value)
    made = parse(Made, {"size": "3", "ratio": 2}, at="m")
    assert (made.size, made.ratio) == (3, 2.0)
    assert parse(Made, made, at="m") is made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 4  # type: ignore[misc]
    with pytest.raises(ConfigurationError):
        Made(0.5)  # type: ignore[misc]
    assert MARK in vars(Made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=[1]   tail that is long enough to be cut", r"character 9: expected a comma or the end after \], found "
         r"'tail that is long en'\. Separate"),
        ("a=  [1, @b],c=2", r"character 9: expected a value as in YAML, found '\[1, @b\]'"),
        ("a=1,b=   {x: @b}", r"character 14: expected a value as in YAML"),
    ],
)  # fmt: skip
def test_the_place_of_a_fault_counts_the_spaces_before_it(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_params(text)


def test_a_later_parameter_replaces_what_is_no_mapping() -> None:
    assert parse_params("a=3,a.b=4") == {"a": {"b": 4}}
    assert parse_params("a=[1],a.b.c=4,a.b.d=5") == {"a": {"b": {"c": 4, "d": 5}}}
    assert nested({"a": 1, "a.b": 2, "c.d": {"e.f": 3}}) == {"a": {"b": 2}, "c": {"d": {"e.f": 3}}}


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_traceback_of_an_error_on_purpose_is_in_the_log_of_a_debugger(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: Any) -> None:
        raise StoreError("a shard is missing")

    monkeypatch.setattr(cli, "check_names", dict)
    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with caplog.at_level(logging.DEBUG, logger=cli.__name__), pytest.raises(click.ClickException):
        cli.run()
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], StoreError)


def test_the_package_has_one_name_that_it_imports_late() -> None:
    from mm_ldlm.inference import MMLDLM

    assert mm_ldlm.MMLDLM is MMLDLM
    with pytest.raises(AttributeError, match=r"^module 'mm_ldlm' has no attribute 'MMLDM'$"):
        _ = mm_ldlm.MMLDM


def test_kedros_own_check_of_the_parameters_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("kedro.validation")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    found = runpy.run_path(str(settings.__file__))
    assert logger.level == logging.ERROR
    assert [type(hook).__name__ for hook in found["HOOKS"]] == ["ProjectHooks"]
    resolvers = found["CONFIG_LOADER_ARGS"]["custom_resolvers"]
    assert resolvers == {"results_of": reference.results_of, "runs_of": reference.runs_of}
