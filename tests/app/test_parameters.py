"""The check of all parameters: every environment passes, every wrong value is refused by its key before the first node."""

import ast
import contextlib
import dataclasses
import functools
import json
import os
import re
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.environments import ENVIRONMENTS, combined, parameters, paths, sections

from mm_ldlm.app import parameters as module
from mm_ldlm.app.config_loader import merge
from mm_ldlm.app.parameters import SCALARS, SECTIONS, check_machine, check_parameters, section_of
from mm_ldlm.core import CheckpointError, ConfigurationError, Kinds, Registry, to_dict

Refuses = Callable[..., Any]
PROJECT = Path(__file__).resolve().parents[2]
GOLDEN = PROJECT / "tests/golden/environments"


def flat(value: Any, at: str = "") -> dict[str, Any]:
    """Every leaf of nested parameters by its dotted path; lists are leaves."""
    if not isinstance(value, Mapping) or not value:
        return {at: value}
    return {
        path: leaf for key, item in value.items() for path, leaf in flat(item, f"{at}.{key}" if at else key).items()
    }


@functools.cache
def resolved(environment: str) -> dict[str, Any]:
    """The leaves of the typed sections that the core has, or that the environment mentions."""
    shown = {*SECTIONS.core, *parameters(environment)} - {*SCALARS}
    kept = {name: section for name, section in sections(environment).items() if name.partition(".")[0] in shown}
    return {"seed": parameters(environment)["seed"], **flat(to_dict(kept))}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_pitfall_34_the_resolved_environment_is_that_of_its_snapshot(
    environment: str, request: pytest.FixtureRequest
) -> None:
    """`base` with all values, defaults included, other environments with those that differ from it; a person reads the
    diff of a change: pytest --regenerate tests/app/test_parameters.py.
    """
    found, base = resolved(environment), resolved("base")
    if environment != "base":
        found = {key: value for key, value in found.items() if key not in base or base[key] != value}
    file = GOLDEN / f"{environment}.json"
    if request.config.getoption("--regenerate"):
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_environments_of_different_axes_combine(environment: str) -> None:
    """Each environment with `test`, and environments of data and of encoders with a model of text alone."""
    others = paths(environment).keys() & {"data", "features"} and environment != "test"
    for name in ("test", "mdlm") if others else ("test",):
        kept = combined(environment, name)["ingestion"]
        assert kept.sources == sections(environment)["ingestion"].sources


def test_every_environment_owns_its_part_of_the_paths() -> None:
    """Otherwise two environments that are combined, or run one after the other, overwrite each other's artifacts."""
    parts = [part for environment in ENVIRONMENTS if environment != "base" for part in paths(environment).items()]
    assert len(parts) == len(set(parts))
    assert all(len(paths(environment)) <= 1 for environment in ENVIRONMENTS if environment != "base")


def test_pitfall_15_every_key_of_every_configuration_is_read_somewhere() -> None:
    names, ends, starts = set[str](), set[str](), set[str]()
    for file in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
            names |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
            if isinstance(node, ast.JoinedStr):  # getattr(config, f"{modality}_loss"), getattr(config, f"max_{unit}")
                parts = {str(part.value) for part in node.values if isinstance(part, ast.Constant)}
                ends |= {part for part in parts if part.startswith("_")}
                starts |= {part for part in parts if part.endswith("_")}
    found: set[type] = set()
    waiting: list[Any] = [section_of(name) for name in SECTIONS.known]
    while waiting:
        hint = waiting.pop()
        if isinstance(hint, Kinds):
            waiting += [hint.find(kind, at="") for kind in hint.known]
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint not in found:
            found.add(hint)
            waiting += typing.get_type_hints(hint, include_extras=True).values()
        else:
            waiting += [*typing.get_args(hint), *getattr(hint, "__metadata__", ())]
    unread = {
        f"{cls.__name__}.{field.name}"
        for cls in found
        for field in dataclasses.fields(cls)
        if not (field.name in names or field.name.endswith(tuple(ends)) or field.name.startswith(tuple(starts)))
    }
    assert not unread


# --- hostile values ---------------------------------------------------------------------------------------------------

LEAVES = st.sampled_from(ENVIRONMENTS).flatmap(
    lambda environment: st.tuples(
        st.just(environment), st.sampled_from([path for path in flat(parameters(environment)) if path != "seed"])
    )
)
HOSTILE = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -1, 0, 10**30, True, "", "a" * 10**5, "\0", "\ud800", "../..", "no:such",
                     "http://u:p@h", {}, [], [[]], {"kind": 3}, {"": 1}, [None], {"x": {"y": []}}, "${x}", "top-0"]),
    st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6),
)  # fmt: skip


def _with(environment: str, path: str, value: Any) -> dict[str, Any]:
    """The typed sections of an environment, with one section as in the files and a value in it."""
    section, _, rest = path.partition(".")
    changed: Any = value
    if rest:
        changed = json.loads(json.dumps(parameters(environment)[section]))
        *parents, last = rest.split(".")
        inner = changed
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return {"seed": 0, **sections(environment), section: changed}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(LEAVES, HOSTILE)
def test_a_hostile_value_gives_a_configuration_or_a_refusal_that_names_its_key(
    leaf: tuple[str, str], value: Any
) -> None:
    environment, path = leaf
    message = None
    try:
        check_parameters(_with(environment, path, value))
    except ConfigurationError as error:
        message = str(error)
    if message is not None:
        assert path.partition(".")[0] in message
        assert path.rpartition(".")[2] in message or "model" in message
        assert len(message) < 5000
        assert "u:p@h" not in message


@example({"run": None})
@given(st.dictionaries(st.text(max_size=8) | st.sampled_from([*SECTIONS.core, *SCALARS]), HOSTILE, max_size=4))
def test_hostile_sections_are_refused_by_their_names(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigurationError, CheckpointError):
        assert check_parameters({**sections("base"), "seed": 0, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"modle": {}}, ("modle", "model")), ({"seed": -1}, ("seed", "-1")), ({"seed": None}, ("seed",)),
        ({"model": {"depht": 2}}, ("model.depht", "depth")), ({"training": {"max_steps": "many"}}, ("training.max_steps", "many")),
        ({"tracking": {"uri": "user:S3cret@host"}}, ("tracking.uri",)), ({"run": "/nowhere"}, ("run", "/nowhere")),
        ({"tracking": {"uri": "http://user:a S3cret@host/"}}, ("tracking.uri",)),
        ({"reporting": {"title": "http://user:S3cret@host"}}, ("reporting.title", "***")),
        ({"model": {"heads": 5}}, ("model.",)), ({"sampling": {"tasks": ["nothing"]}}, ("sampling.tasks", "nothing")),
        ({"sampling": {"length": 100_000}}, ("sampling.length", "100000")),
        ({"evaluation": {"inversion": {"sweep": [{"label": "x", "sampler": {"kind": "nothing"}}]}}}, ("sampler.kind", "nothing")),
    ],
)  # fmt: skip
def test_a_refusal_names_the_parameter_and_never_a_secret(
    refuses: Refuses, changes: dict[str, Any], named: Any
) -> None:
    with refuses(CheckpointError if "run" in changes else ConfigurationError, *named):
        check_parameters(merge(parameters("base"), changes))


def test_a_check_of_another_package_that_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKS", Registry("check", {"odd": "builtins:int"}, "checks_of_a_test"))
    with pytest.raises(ConfigurationError, match="TypeError"):
        check_parameters({**sections("base"), "seed": 0})


# --- the machine ------------------------------------------------------------------------------------------------------


def _paths_in(environment: str) -> dict[str, Any]:
    """Changes of the parameters that name a file each, by the parameter."""
    return {
        "ingestion.sources[0].path": {"ingestion": {"sources": [{"kind": "text", "path": "FILE"}]}},
        "tokenizer.path": {"tokenizer": {"path": "FILE"}},
        "evaluation.likelihood.other_texts[0].path": {
            "evaluation": {"likelihood": {"other_texts": [{"name": "x", "path": "FILE"}]}}
        },
        "sampling.l2t.files[0]": {"sampling": {"l2t": {"files": ["FILE"]}}},
        "sampling.t2l.files[0]": {"sampling": {"t2l": {"files": ["FILE"]}}},
        "reporting.compare[0]": {"reporting": {"compare": ["FILE"]}},
    }


def _filled(value: Any, file: str) -> Any:
    return json.loads(json.dumps(value).replace('"FILE"', json.dumps(file)))


@pytest.mark.parametrize("key", _paths_in("base"))
def test_a_file_is_looked_for_before_the_first_node(key: str, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("a")
    os.mkfifo(tmp_path / "pipe")
    changes, section = _paths_in("base")[key], key.partition(".")[0]
    for name, fits in (
        ("there.txt", True),
        ("**/there.txt", True),
        ("ther*.txt", True),
        ("ther.txt", False),
        ("pipe", False),
    ):
        changed = merge(parameters("base"), _filled(changes, str(tmp_path / name)))[section]
        typed = check_parameters({**sections("base"), "seed": 0, section: changed})
        check_machine(typed, read=set(typed) - {section})
        if fits:
            check_machine(typed, read={section}, unused={section})
            continue
        with pytest.raises(ConfigurationError, match=re.escape(f"'{key}'")):
            check_machine(typed, read={section})


def test_a_device_that_is_absent_is_named_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    typed = check_parameters(merge(parameters("base"), {"sampling": {"device": "cuda:2"}}))
    with pytest.raises(ConfigurationError, match=r"'sampling\.device'.*cuda:2"):
        check_machine(typed, read={"sampling"})
    check_machine(typed, read={"sampling"}, unused={"sampling"})


@pytest.mark.parametrize("member", ["missing", "input_files", "__getattr__"])
def test_a_class_of_another_package_that_cannot_answer_is_named(member: str) -> None:
    class Quiet(Exception):
        def __str__(self) -> str:
            raise ValueError

    def answer(*_: Any) -> Any:
        raise Quiet

    encoder = dataclasses.make_dataclass("Odd", [], namespace={member: answer})()
    with pytest.raises(ConfigurationError, match=r"'encoder'.*Quiet"):
        check_machine({"encoder": encoder}, read={"encoder"})


def test_model_and_objective_are_those_of_a_run_that_is_chosen_by_its_path(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run-1" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").touch()
    other = {key: parameters("mdlm")[key] for key in ("model", "objective")}
    (tmp_path / "run-1" / "config.json").write_text(json.dumps({**other, "shape": {}}))
    for path in (checkpoint, checkpoint.parents[1]):
        typed = check_parameters({**parameters("base"), "run": str(path)})
        assert {key: typed[key].kind for key in other} == {key: other[key]["kind"] for key in other}
    for name in ("best", "7"):
        with pytest.raises(ConfigurationError, match=rf"'evaluation\.checkpoint'.*step-00000005.*'{name}'"):
            check_parameters(merge(parameters("base"), {"run": str(checkpoint), "evaluation": {"checkpoint": name}}))
    (tmp_path / "run-1" / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        check_parameters({**parameters("base"), "run": str(checkpoint)})
