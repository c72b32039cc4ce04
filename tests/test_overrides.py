"""The text of `--params`, and the file of `--config`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mm_ldlm.core.overrides import parse_params

from mm_ldlm import cli
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNHURRIED
@given(first=VALUES, second=VALUES, ascii_only=st.booleans())
@example(first='it\'s "both", [a', second={"a,b": ["]", "}", {"'": "\\"}]}, ascii_only=True)
def test_every_value_of_json_round_trips(first: Any, second: Any, ascii_only: bool) -> None:
    def write(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only)

    assert parse_params(f"a.b={write(first)},c = {write(second)} ,") == {"a": {"b": first}, "c": second}


@UNHURRIED
@given(st.text(st.sampled_from("ab=,.[]{}'\": \\-#*&!|%@<1\n${}"), max_size=40))
def test_any_text_is_read_or_refused_with_position_and_example(text: str) -> None:
    refused = None
    try:
        parse_params(text)
    except MMLDLMError as error:
        refused = str(error)
    assert refused is None or re.fullmatch(r"--params, character \d+: .* Example: --params '.*'\.", refused)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("sampling.l2t.files=[a.npy,b.npy]", {"sampling": {"l2t": {"files": ["a.npy", "b.npy"]}}}),
        ("m=[{name: a, env: mdlm},{name: b}],seed=1", {"m": [{"name": "a", "env": "mdlm"}, {"name": "b"}], "seed": 1}),
        ("m={kind: dit, dims: [[1, 2], [3]]}, m.dim=4", {"m": {"kind": "dit", "dims": [[1, 2], [3]], "dim": 4}}),
        ("a=[it's, 'b, ]', \"c'\"]", {"a": ["it's", "b, ]", "c'"]}),
        ("a=it's,b='it''s, x'", {"a": "it's", "b": "it's, x"}),
        ("a={b: ']', c: ['}', \"]\"]},d=1", {"a": {"b": "]", "c": ["}", "]"]}, "d": 1}),
        ("a={b:  '}'}", {"a": {"b": "}"}}),
        ("a=1e-3,b=5,c=true,d=null,e=,f=x=y", {"a": 1e-3, "b": 5, "c": True, "d": None, "e": None, "f": "x=y"}),
        ("a=*.txt,b=d/{x}.txt,c=50%,d=a: b", {"a": "*.txt", "b": "d/{x}.txt", "c": "50%", "d": "a: b"}),
        ("a=x #1,b=${g},c=007x,d=@f", {"a": "x #1", "b": "${g}", "c": "007x", "d": "@f"}),
        ("a=1,a=2,b=3,b.c=4", {"a": 2, "b": {"c": 4}}),
        ("a.b=1,a={c: 2},a={d: {e: 3}},a.d={f: 4}", {"a": {"b": 1, "c": 2, "d": {"e": 3, "f": 4}}}),
        ("a=<<,b==,c=[NaN],d={\"e\":'f,g'}", {"a": "<<", "b": "=", "c": ["NaN"], "d": {"e": "f,g"}}),
        ("", {}),
    ],
)  # fmt: skip
def test_what_a_text_becomes(text: str, parameters: dict[str, Any]) -> None:
    assert parse_params(text) == parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed=1,b.npy", r"character 8: expected KEY=VALUE, found 'b.npy' without '='. Write a list in brackets"),
        ("a=[1,[2,3],b=2", r"character 3: expected \] for the \[, found the end of the text"),
        ("a=[1,{b: 2]", r"character 11: expected \} for the \{ at character 6, found \]"),
        ("seed=1,a='b", r"character 10: expected ' at the end of the quoted text"),
        ("a=[1] x,b=2", r"character 7: expected a comma or the end after \], found 'x,b=2'"),
        ("a=[1, @b]", r"character 7: expected a value as in YAML, found '\[1, @b\]'"),
        ("a={b: 1, b: 2}", r"character 10: .*duplicate key b"),
        ('a={"b":1,"b":2}', r"character 10: .*duplicate key b"),
        ("=1", r"character 1: expected a key such as section.name before '=', found ''"),
        ("a..b=1", r"character 1: expected a key such as section.name"),
        ("a=" + "[" * 40, r"character 35: expected at most 32 nested brackets"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_at_its_position(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_params(text)


# -- the options of the command ----------------------------------------------------------------------------------------


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that Kedro's command receives."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli, "check_names", dict)
    monkeypatch.setattr(cli.kedro_run, "callback", lambda **options: seen.update(options))
    return seen


def test_kedro_receives_the_parameters(received: dict[str, Any]) -> None:
    result = CliRunner().invoke(cli.cli, ["run", "--params=sampling.l2t.files=[a.npy, b.npy]"])
    assert result.exit_code == 0, result.output
    assert received["params"] == {"sampling": {"l2t": {"files": ["a.npy", "b.npy"]}}}


def test_a_fault_is_one_sentence_without_a_traceback() -> None:
    result = CliRunner().invoke(cli.cli, ["run", "--params=a=[1"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: --params, character 3: expected ] for the [")
    assert result.output.count("\n") == 1


FILES = {"sts": {"files": {"a.b": "c"}}}


@pytest.mark.parametrize("order", [1, -1])
def test_the_command_line_overrides_the_file_parameter_by_parameter(
    received: dict[str, Any], tmp_path: Path, order: int
) -> None:
    file = tmp_path / "run.yml"
    file.write_text(
        "run:\n  env: mdlm+test\n  pipelines: [sampling, evaluation]\n"
        "  params:\n    training: {max_steps: 7, seed: 1}\n    sampling.rows: 5\n    evaluation.sts.files: {a.b: c}\n"
    )
    options = ["--params=training.max_steps=9", f"--config={file}"][::order]
    result = CliRunner().invoke(cli.cli, ["run", *options])
    assert result.exit_code == 0, result.output
    assert received["params"] == {"training": {"max_steps": 9, "seed": 1}, "sampling": {"rows": 5}, "evaluation": FILES}
    assert (received["env"], received["pipelines"]) == ("mdlm+test", ["sampling", "evaluation"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("run:\n  env: test\n params: 1\n", "run.yml, line 3: cannot be read as YAML"),
        ("run:\n  env: \xff\n", None),
        ("env: test\n", "run.yml: expected a mapping with the key 'run'"),
        ("run: {env: test}\nparams: {a: 1}\n", "run.yml: expected the key 'run' alone, found 'params' beside it"),
        ("run: {parms: {a: 1}}\n", "'parms' is not a key of 'run' in {file}. Did you mean 'params'?"),
        ("run: {params: 'a=[1'}\n", "run.yml, character 3: expected ] for the ["),
    ],
)
def test_a_fault_of_the_file_names_it(tmp_path: Path, content: str, message: str | None) -> None:
    file = tmp_path / "run.yml"
    file.write_bytes(content.encode("latin-1"))
    result = CliRunner().invoke(cli.cli, ["run", f"--config={file}"])
    assert result.exit_code == 1
    expected = "run.yml, line 2: cannot be read as YAML: byte 0xff is not UTF-8" if message is None else message
    assert expected.replace("{file}", str(file)) in result.output
    assert result.output.count("\n") == 1
