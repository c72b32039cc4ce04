"""Refusals of parameters to the letter: kinds, unions, choices, sections; files of options and of configuration."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Protocol

import pytest
from kedro.config import OmegaConfigLoader

from mm_ldlm import cli
from mm_ldlm.app.config_loader import LayeredConfigLoader, parse_yaml
from mm_ldlm.core.config import PositiveInt, config, parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.settings import CONFIG_LOADER_ARGS


class Sized(Protocol):
    """What every box has."""

    kind: str
    size: int

    def volume(self) -> int: ...


BOXES = Kinds("item", {"cube": "boxes_of_a_test:Cube", "crate": "boxes_of_a_test:Crate"}, "none", Sized)


@config
class Cube:
    kind: str = "cube"
    size: PositiveInt = 1

    def volume(self) -> int:
        return self.size**3


@config
class Flat:
    kind: str = "flat"


@config
class Unfinished(ABC):
    kind: str = "base"
    size: int = 1

    @abstractmethod
    def volume(self) -> int: ...


@config
class Section:
    box: Annotated[Any, BOXES] = Cube()
    colour: Literal["red", "green", "blue"] = "red"
    length: str | int = "all"
    names: tuple[str, ...] = ()
    pair: tuple[int, int] = (1, 2)
    ratio: float = 0.5
    inner: Cube = Cube()
    of: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.ratio == 7:
            raise ValueError("seven is odd, at http://me:sentinel@host")


@pytest.fixture(autouse=True)
def boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("boxes_of_a_test")
    module.__dict__.update(Cube=Cube, Crate=Cube, Flat=Flat, Unfinished=Unfinished, number=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)


LACKING = f"which is not one: it has no 'size', 'volume' ({__name__}.Sized). Choose an item: cube, crate."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "'it': expected a mapping with the key 'kind', found 3. Choose an item: cube, crate."),
        ({"size": 3}, "'it.kind' is missing and has no default. Choose an item: cube, crate."),
        ({"kind": "cub"}, "'it.kind': expected an item, found 'cub'. Did you mean 'cube'? Known here: cube, crate; or "
         "give the import path of a configuration, package.module:Class."),
        ({"kind": "boxes_of_a_test:number"}, "'it.kind': boxes_of_a_test:number is not a configuration. Expected a "
         "class "
         "made by mm_ldlm.core.config.config."),
        ({"kind": "boxes_of_a_test:Unfinished"}, "'it.kind': boxes_of_a_test:Unfinished is the abstract base of other "
         "configurations. Choose one of them."),
        ({"kind": "boxes_of_a_test:Flat"}, f"'it.kind': expected an item, found boxes_of_a_test:Flat, {LACKING}"),
        (Flat(), f"'it': expected an item, found Flat, {LACKING}"),
        ({"kind": "no_such_package.a:B"}, "'it.kind': no_such_package.a:B cannot be imported (No module named "
         "'no_such_package'). Correct the path, or install or correct its package."),
        ({"kind": "cube", "sise": 3}, "'it.sise' is not known. Did you mean 'size'? Known here: kind, size."),
    ],
)  # fmt: skip
def test_a_kind_is_refused_to_the_letter(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_kind(BOXES, value, at="it")
    assert str(error.value) == f"parameter {words}"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"colour": "gren"}, "'it.colour': Input should be 'red', 'green' or 'blue' (found 'gren'). Did you mean "
         "'green'?"),
        ({"colour": 3}, "'it.colour': Input should be 'red', 'green' or 'blue' (found 3)."),
        ({"length": [1]}, "'it.length': Input should be a valid string, or: Input should be a valid integer (found "
         "[1])."),
        ({"names": {}}, "'it.names': expected a list, as in [a, b] (found {})."),
        ({"pair": [1, "x"]}, "'it.pair.1': Input should be a valid integer, unable to parse string as an integer "
         "(found "
         "'x')."),
        ({"ratio": 7}, "'it': seven is odd, at http://***@host."),
        ({"inner": {"size": 0}}, "'it.inner.size': Input should be greater than 0 (found 0)."),
        ({"inner": {"sise": 1}}, "'it.inner.sise' is not known. Did you mean 'size'? Known here: kind, size."),
        ({"box": {"kind": "cube", "size": 0}}, "'it.box.size': Input should be greater than 0 (found 0)."),
        ({"zzz": 1}, "'it.zzz' is not known. Known here: box, colour, length, names, pair, ratio, inner, of."),
        ({"of": {"a": 1, "b": "x"}}, "'it.of.b': Input should be a valid integer, unable to parse string as an integer "
         "(found 'x')."),
        ({"of": {"int": "x"}}, "'it.of.int': Input should be a valid integer, unable to parse string as an integer "
         "(found 'x')."),  # a key that is called like a type
        (None, "'it': expected a mapping of Section, found None."),
        ([1], "'it': expected a mapping of Section, found [1]."),
    ],
)  # fmt: skip
def test_a_section_is_refused_to_the_letter(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(Section, value, at="it")
    assert str(error.value) == f"parameter {words}"


def test_a_mapping_of_parameters_stays_as_it_was() -> None:
    given: dict[str, Any] = {"box": {"kind": "crate", "size": 3}, "names": "a", "pair": [3, 4], "of": {"x": 1}}
    before = repr(given)
    found = parse(Section, given, at="it")
    assert repr(given) == before
    assert (found.box, found.names, found.pair, found.of) == (Cube(kind="crate", size=3), ("a",), (3, 4), {"x": 1})


# -- a file of options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: test\n", "{file}: expected a mapping with the key 'run', which has the options of `kedro run`, found "
         "{'env': 'test'}. Write for example: run: {env: test, params: {training: {max_steps: 100}}}."),
        ("run: 3\n", "{file}: expected a mapping with the key 'run', which has the options of `kedro run`, found "
         "{'run': 3}. Write for example: run: {env: test, params: {training: {max_steps: 100}}}."),
        ("", "{file}: expected a mapping with the key 'run', which has the options of `kedro run`, found None. Write "
         "for example: run: {env: test, params: {training: {max_steps: 100}}}."),
        ("run: {}\na: 1\nb: 2\n", "{file}: expected the key 'run' alone, found 'a, b' beside it, which nothing reads. "
         "Move it below 'run', or remove it."),
    ],
)  # fmt: skip
def test_a_file_of_options_is_refused_to_the_letter(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        cli._options_in(file)
    assert str(error.value) == words.replace("{file}", str(file))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("run: {}\n", {}),
        ("run: {params: null, env: e, tags: [a, 3], async: true}\n", None),
        ("run: {params: 'a.b=1,c=[x]', pipelines: [p, q], to_nodes: n}\n",
         {"params": {"a": {"b": 1}, "c": ["x"]}, "pipelines": "p,q", "to_nodes": "n"}),
        ("run: {params: {a.b: 1, a: {c: {d.e: 2}}}}\n", {"params": {"a": {"b": 1, "c": {"d.e": 2}}}}),
        ("run: {params: {}, tags: []}\n", {"params": {}, "tags": ""}),
    ],
)  # fmt: skip
def test_a_file_of_options_is_read_as_the_command_line_is(
    text: str, options: dict[str, Any] | None, tmp_path: Path
) -> None:
    file = tmp_path / "run.yml"
    file.write_text(text)
    if options is None:
        with pytest.raises(
            ConfigurationError, match=r"^'async' is not a key of 'run' in .*\. Did you mean 'is_async'\?"
        ):
            cli._options_in(file)
        return
    assert cli._options_in(file) == options


# -- files of configuration --------------------------------------------------------------------------------------------


def loader(root: Path, files: dict[str, str], env: str) -> LayeredConfigLoader:
    for name, text in {"base/parameters.yml": "a: 1\n", "base/catalog.yml": "x: {type: MemoryDataset}\n",
                       **files}.items():  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return LayeredConfigLoader(root, env=env, **CONFIG_LOADER_ARGS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1\n- 2\n", "{root}/own/parameters.yml: expected a mapping of keys to values, found [1, 2]. Correct or "
         "remove "
         "it."),
        ("b: {c: '${b.c}'}\n", "the configuration 'parameters' of the environment 'own' in {root} cannot be read: "
         "Recursive interpolation detected full_key: b.c object_type=dict. Correct the file that it names."),
        ("a: 1\na: 2\n", "{root}/own/parameters.yml, line 2: cannot be read as YAML: found duplicate key a. Correct "
         "this "
         "line, or the one before."),
    ],
)  # fmt: skip
def test_a_file_of_configuration_is_refused_to_the_letter(text: str, words: str, tmp_path: Path) -> None:
    found = loader(tmp_path, {"own/parameters.yml": text}, "own")
    with pytest.raises(ConfigurationError) as error:
        found["parameters"]
    assert str(error.value) == words.replace("{root}", str(tmp_path))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(RecursionError("maximum recursion depth exceeded."), "a reference leads to itself"),
     (ValueError("of\n  two lines, at http://me:pw@host."), "of two lines, at http://***@host"),
     (AttributeError("'int' object has no attribute 'x'"), "a top-level key is no text")],
)  # fmt: skip
def test_what_cannot_be_resolved_is_refused_in_one_line(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, key: str) -> None:
        raise error

    found = loader(tmp_path, {"own/catalog.yml": "y: {type: MemoryDataset}\n"}, "own")
    monkeypatch.setattr(OmegaConfigLoader, "__getitem__", fail)
    with pytest.raises(ConfigurationError) as refused:
        found["catalog"]
    assert str(refused.value) == (
        f"the configuration 'catalog' of the environment 'own' in {tmp_path} cannot be read: {reason}. Correct the "
        "file that it names."
    )
    assert refused.value.__cause__ is error


def test_a_top_level_number_is_refused_with_the_type_of_its_files(tmp_path: Path) -> None:
    found = loader(tmp_path, {"own/catalog.yml": "3: {type: MemoryDataset}\n"}, "own")
    with pytest.raises(ConfigurationError) as error:
        found["catalog"]
    assert str(error.value) == (
        f"the configuration 'catalog' of the environment 'own' in {tmp_path} cannot be read: a top-level key is no "
        "text. Correct the file that it names."
    )
    assert found["parameters"] == {"a": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [("a: 1e-3\n", {"a": 0.001}), ("a: yes\n", {"a": True}), ("a: null\nb: ~\n", {"a": None, "b": None}), ("", None),
     ("3", 3), ("a: 2020-01-01\n", {"a": "2020-01-01"})],
)  # fmt: skip
def test_yaml_is_read_with_the_types_of_omegaconf(text: str, value: Any) -> None:
    found = parse_yaml(text.encode(), file="f")
    assert found == value or str(found) == str(value)


def test_a_long_reason_of_a_file_is_shortened() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_yaml(f"{'k' * 900}: 1\n{'k' * 900}: 2\n".encode(), file="f.yml")
    assert str(error.value).startswith("f.yml, line 2: cannot be read as YAML: found duplicate key kkk")
    assert len(str(error.value)) < 320
