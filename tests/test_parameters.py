from __future__ import annotations

import ast
import dataclasses
import shutil
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.config import OmegaConfigLoader

import mm_ldlm.parameters
from mm_ldlm.config import PositiveInt, _dataclasses_in, config
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.parameters import check_parameters, flatten
from mm_ldlm.settings import CONFIG_LOADER_ARGS


@config
class Inner:
    beta: tuple[float, float]
    depth: PositiveInt = 2

    def __post_init__(self) -> None:
        if self.beta[1] < self.beta[0]:
            raise ValueError(f"beta must rise, found {self.beta[0]:g} and {self.beta[1]:g}")


@config
class Room:
    lr: float
    inner: Inner


@pytest.fixture
def one_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mm_ldlm.parameters, "SECTIONS", {"room": "here:Room"})
    monkeypatch.setattr(mm_ldlm.parameters, "_load", lambda path: Room)


GOOD: dict[str, Any] = {"seed": 1, "room": {"lr": 1e-3, "inner": {"beta": [0.9, 0.95]}}}


@pytest.mark.usefixtures("one_room")
def test_sections_become_types() -> None:
    room = check_parameters(GOOD)["room"]
    assert room == Room(lr=1e-3, inner=Inner(beta=(0.9, 0.95), depth=2))
    assert check_parameters({**GOOD, "data": "elsewhere"})["room"] == room


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rooom": {}}, r"parameter 'rooom' is not known\. Did you mean 'room'\?"),
        ({"seed": "seven"}, r"parameter 'seed': expected int, found 'seven'"),
        ({"seed": True}, r"parameter 'seed': expected int, found True"),
        ({"seed": -1}, r"parameter 'seed': expected a number of at least 0, found -1"),
        ({"room": {"lr": "fast", "inner": {"beta": [0.9, 0.95]}}}, r"parameter 'room\.lr'.*found 'fast'"),
        ({"room": {"lr": 1, "inner": {"beta": [1, 2], "detph": 3}}}, r"'room\.inner\.detph' is not.*mean 'depth'"),
        ({"room": {"lr": 1, "inner": {"beta": [1, 2], "depth": 0}}}, r"parameter 'room\.inner\.depth'.*found 0"),
        ({"room": {"lr": 1, "inner": {}}}, r"parameter 'room\.inner\.beta' is missing"),
        ({"room": {"lr": 1, "inner": {"beta": [1, True]}}}, r"parameter 'room\.inner\.beta\.1': .* number, found True"),
        ({"room": {"lr": 1, "inner": {"beta": [2, 1]}}}, r"parameter 'room\.inner': beta must rise, found 2 and 1\.$"),
        ({"room": 3}, r"parameter 'room': expected a mapping"),
    ],
)
def test_pitfall_15_keys_that_nothing_reads_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_parameters({**GOOD, **change})


@pytest.mark.usefixtures("one_room")
def test_a_missing_section_or_seed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="parameter 'room' is missing"):
        check_parameters({"seed": 0})
    with pytest.raises(ConfigurationError, match="parameter 'seed' is missing"):
        check_parameters({"room": GOOD["room"]})


@pytest.mark.usefixtures("one_room")
def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        check_parameters({"sed": 0, "room": {"lr": "x", "iner": 0}})
    assert len(str(error.value).splitlines()) == 5  # sed, seed missing, lr, iner, inner missing


def test_flatten_gives_dotted_leaves() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": {}}) == {"a.b.c": 1, "a.d": [1, 2], "e": {}}


def test_pitfall_24_an_overlay_changes_only_what_it_names(tmp_path: Path) -> None:
    for environment, text in {
        "base": "training: {lr: 0.001, optimizer: {betas: [0.9, 0.95], decay: 0.01}}",
        "big": "training: {optimizer: {decay: 0.1}}",
    }.items():
        (tmp_path / environment).mkdir()
        (tmp_path / environment / "parameters.yml").write_text(text)
    loader = OmegaConfigLoader(str(tmp_path), env="big", runtime_params={"training": {"lr": 0.5}}, **CONFIG_LOADER_ARGS)
    assert loader["parameters"] == {"training": {"lr": 0.5, "optimizer": {"betas": [0.9, 0.95], "decay": 0.1}}}


# -- the project's own configuration -----------------------------------------------------------------------------------


def environments(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "conf").iterdir() if path.is_dir())


def parameters(project: Path, environment: str, **runtime: Any) -> dict[str, Any]:
    loader = OmegaConfigLoader(
        str(project / "conf"), env=environment, runtime_params=runtime or None, **CONFIG_LOADER_ARGS
    )
    loaded: dict[str, Any] = loader["parameters"]
    return loaded


def test_every_environment_parses(project: Path) -> None:
    for environment in environments(project):
        typed = check_parameters(parameters(project, environment))
        assert set(typed) == set(mm_ldlm.parameters.SECTIONS), environment


def test_pitfall_24_every_overlay_keeps_the_siblings_of_what_it_sets(project: Path) -> None:
    base = flatten(parameters(project, "base"))
    for environment in environments(project):
        files = [
            *(project / "conf" / environment).rglob("parameters*"),
            *(project / "conf" / environment).rglob("parameters*/*.yml"),
        ]
        named: set[str] = set()
        for file in files:
            if file.is_file():
                named |= set(flatten(yaml.safe_load(file.read_text()) or {}))
        merged = flatten(parameters(project, environment))
        touched = {key for key in base.keys() | merged.keys() if base.get(key) != merged.get(key)}
        assert touched <= named | {key for key in base if any(key.startswith(f"{n}.") for n in named)}, environment


def test_pitfall_15_a_misspelt_key_in_any_section_is_refused(project: Path) -> None:
    for section in mm_ldlm.parameters.SECTIONS:
        with pytest.raises(ConfigurationError, match=rf"parameter '{section}\.no_such_key' is not known"):
            check_parameters(parameters(project, "base", **{section: {"no_such_key": 1}}))


@pytest.mark.parametrize("section", ["sampling", "evaluation"])
def test_a_checkpoint_is_named_by_its_step(project: Path, section: str) -> None:
    for name in (500, "500", "step-00000500", "best"):
        typed = check_parameters(parameters(project, "base", **{section: {"checkpoint": name}}))
        assert typed[section].checkpoint == str(name)
    with pytest.raises(ConfigurationError, match=rf"parameter '{section}\.checkpoint'.*found 'newest'"):
        check_parameters(parameters(project, "base", **{section: {"checkpoint": "newest"}}))


def test_every_overlay_opens_with_its_command(project: Path) -> None:
    for environment in environments(project):
        if environment in ("base", "local"):
            continue
        folder = project / "conf" / environment
        files = [file for file in folder.rglob("*.yml") if "parameters" in file.relative_to(folder).as_posix()]
        assert files, environment
        heads = [file.read_text().split("\n\n")[0] + file.read_text().split("\n\n")[1] for file in files]
        head = next((head for head in heads if f"--env={environment}" in head), None)
        assert head is not None, environment
        for word in ("time", "score"):
            assert word in head.lower(), (environment, word)


def test_a_key_set_in_base_stands_in_one_file(project: Path, tmp_path: Path) -> None:
    """Kedro refuses the same key in two files of an environment; held here so that the refusal is not lost."""
    copy = tmp_path / "conf"
    shutil.copytree(project / "conf", copy)
    (copy / "base" / "parameters" / "again.yml").write_text("seed: 3\n")
    with pytest.raises(ValueError, match=r"Duplicate keys.*seed"):
        parameters(tmp_path, "base")


def fields_below(cls: Any) -> set[tuple[str, str]]:
    """(class, field) of a section's dataclass and of every dataclass inside it."""
    found: set[tuple[str, str]] = set()
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        found.add((cls.__name__, field.name))
        for inner in _dataclasses_in(hints[field.name]):
            found |= fields_below(inner)
    return found


def test_pitfall_15_every_key_is_read_somewhere(project: Path) -> None:
    reads = Counter[str]()
    for file in (project / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                reads[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                reads[node.value] += 1  # getattr(config, "name"), dictionaries made of a config
    unread = [
        f"{name}.{field}"
        for path in mm_ldlm.parameters.SECTIONS.values()
        for name, field in sorted(fields_below(mm_ldlm.parameters._load(path)))
        if not reads[field]
    ]
    assert unread == []
