"""Durations, lists of problems and shown values at the limits of their forms."""

from __future__ import annotations

import logging
import os
import runpy
from typing import Any, Protocol

import click
import pytest
from mm_ldlm.core.overrides import nested, parse_params

import mm_ldlm
from mm_ldlm import cli, settings
from mm_ldlm.core.errors import ConfigurationError, StoreError
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.core.messages import about, duration, escape, nearest, shorten, show, summarise
from mm_ldlm.pipeline_registry import ALONE, register_pipelines
from mm_ldlm.pipelines import MAIN
from mm_ldlm.training.checkpoints import reference

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
    assert nearest("a" * 200, ["a" * 100], cutoff=1.0) == f" Did you mean '{'a' * 100}'?"
    assert nearest("training", ["training"]) == ""
    assert nearest("abcd", ["abxy"], cutoff=0.4) == " Did you mean 'abxy'?"
    assert nearest("abcd", ["abxy"]) == ""


# -- parameters --------------------------------------------------------------------------------------------------------


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


def test_the_default_pipeline_is_the_main_job_alone() -> None:
    made = register_pipelines()
    assert set(made) == {"__default__", *MAIN, *ALONE}
    names = {name: {node.name for node in graph.nodes} for name, graph in made.items()}
    assert names["__default__"] == set().union(*(names[name] for name in MAIN))
    for name in ALONE:
        assert names[name]
        assert not names[name] & names["__default__"]


class Named(Protocol):
    """An interface from which another one is made."""

    kind: str
    _hidden: int

    def name(self) -> str: ...


class Sized(Named, Protocol):
    """The interface of the test, with a member of its own."""

    @property
    def size(self) -> int: ...


def test_an_interface_has_the_members_of_those_that_it_is_made_from() -> None:
    kinds = Kinds("box", {}, group="none", interface=Sized)
    complete = {"kind": "a", "name": 1, "size": 2}
    kinds.check(type("Complete", (), complete), "it", at="p")
    for member in complete:
        lacking = type("Lacking", (), {name: value for name, value in complete.items() if name != member})
        with pytest.raises(ConfigurationError, match=rf"^parameter 'p': .* it has no '{member}' \(.*\.Sized\)"):
            kinds.check(lacking, "it", at="p")
    with pytest.raises(ConfigurationError, match="it has no 'kind', 'name', 'size' "):
        kinds.check(object, "it", at="p")
