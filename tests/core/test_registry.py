"""Registries: where components are found, and the refusal of a value that is not a kind."""

import importlib
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import pytest

import mm_ldlm
from mm_ldlm.core import (
    CONTRIBUTORS,
    ConfigurationError,
    Kinds,
    Registry,
    SamplingError,
    config,
    contributed,
    foreign_code,
    parse,
    parse_kind,
    registered,
    to_dict,
)
from mm_ldlm.sampling.search import SearchConfig

Refuses = Callable[..., Any]


class Flat(Protocol):
    def area(self) -> float: ...


class Shape(Flat, Protocol):
    kind: str
    corners: ClassVar[int]


SHAPES = Kinds("shape", {"circle": "shapes_of_a_test:Circle", "square": "shapes_of_a_test:Square"}, "shapes", Shape)
PACKAGE = """
from typing import Annotated, Any, ClassVar
from mm_ldlm.core.typed import PositiveInt, config
from abc import ABC, abstractmethod

@config
class Circle:
    kind: str = "circle"
    radius: PositiveInt = 1
    corners: ClassVar[int] = 0
    def area(self): return 3.0 * self.radius

@config
class Square:
    kind: str = "square"
    side: PositiveInt
    corners: ClassVar[int] = 4
    def area(self): return 1.0

@config
class NoArea:
    kind: str = "none"
    corners: ClassVar[int] = 0

class Plain(Circle):
    pass

@config
class Base(ABC):
    kind: str = "base"
    corners: ClassVar[int] = 0
    @abstractmethod
    def area(self): ...
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of shapes in a folder of the path, with entry points."""
    (tmp_path / "shapes_of_a_test.py").write_text(PACKAGE)
    (tmp_path / "broken_of_a_test.py").write_text("raise SystemExit('a' * 100_000)")
    info = tmp_path / "shapes_of_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: shapes_of_a_test\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mm_ldlm.shapes]\nround = shapes_of_a_test:Circle\ncircle = broken_of_a_test:Circle\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registered.cache_clear()
    yield tmp_path
    registered.cache_clear()
    for name in ("shapes_of_a_test", "broken_of_a_test"):
        sys.modules.pop(name, None)


@config
class Drawing:
    one: Annotated[Any, SHAPES]
    several: tuple[Annotated[Any, SHAPES], ...] = ()
    optional: Annotated[Any, SHAPES] | None = None


def test_a_kind_is_found_by_name_entry_point_and_import_path() -> None:
    value = {"one": {"kind": "circle", "radius": 2}, "several": [{"kind": "square", "side": 3}, {"kind": "round"}]}
    value["optional"] = {"kind": "square", "side": 5}
    made = parse(Drawing, value, at="drawing")
    assert (made.one.area(), made.several[0].side, made.optional.side) == (6.0, 3, 5)
    assert type(made.several[1]) is type(made.one)
    path = parse_kind(SHAPES, {"kind": "shapes_of_a_test:Square", "side": 1}, at="x")
    assert to_dict(path) == {"kind": "shapes_of_a_test:Square", "side": 1}
    assert parse_kind(SHAPES, path, at="x") is path


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"kind": "cirkle"}, ("drawing.one.kind", "cirkle", "circle")),
        ({"kind": 3}, ("drawing.one.kind", "3")),
        ({"radius": 3}, ("drawing.one", "kind")),
        ("circle", ("drawing.one", "circle")),
        ({"kind": "square"}, ("drawing.one.side",)),
        ({"kind": "circle", "side": 1}, ("drawing.one.side", "radius")),
        ({"kind": "no_such_package:Circle"}, ("no_such_package",)),
        ({"kind": "shapes_of_a_test:Missing"}, ("Missing",)),
        ({"kind": "broken_of_a_test:Circle"}, ("broken_of_a_test",)),
        ({"kind": "shapes_of_a_test:NoArea"}, ("'area'",)),
        ({"kind": "shapes_of_a_test:Plain"}, ("Plain", "config")),
        ({"kind": "shapes_of_a_test:Base"}, ("Base",)),
        (SearchConfig(), ("'area'", "Shape")),
    ],
)  # fmt: skip
def test_what_is_no_kind_is_refused_by_its_path(refuses: Refuses, value: Any, named: tuple[str, ...]) -> None:
    with refuses(ConfigurationError, *named):
        parse(Drawing, {"one": value}, at="drawing")
    with pytest.raises(ConfigurationError, match=r"drawing\.optional"):
        parse(Drawing, {"one": {"kind": "square", "side": 3}, "optional": value}, at="drawing")


@pytest.mark.parametrize("error", [SystemExit(128 + signal.SIGTERM), KeyboardInterrupt(), SamplingError("x")])
def test_a_termination_passes_the_code_of_another_package(error: BaseException) -> None:
    with pytest.raises(type(error)), foreign_code(ConfigurationError):
        raise error


@pytest.fixture(scope="module")
def registries() -> list[tuple[str, Registry]]:
    """Every registry of the package by its group; all modules are imported."""
    found: dict[int, tuple[str, Registry]] = {}
    for each in pkgutil.walk_packages(mm_ldlm.__path__, "mm_ldlm."):
        if each.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(each.name)
        for value in vars(loaded).values():
            if isinstance(value, Registry):
                found[id(value)] = (value.group, value)
    return sorted(found.values(), key=lambda pair: pair[0])


def test_every_registered_component_can_be_loaded_and_fits_its_group(registries: list[tuple[str, Registry]]) -> None:
    for group, registry in registries:
        for name in registry.known:
            loaded = registry.load(name)
            if isinstance(registry, Kinds):
                assert registry.find(name, at=group) is loaded


def test_every_contributed_group_belongs_to_a_registry(registries: list[tuple[str, Registry]]) -> None:
    groups = {group for group, _ in registries}
    for folder in CONTRIBUTORS:
        for each in sorted(Path(mm_ldlm.__path__[0], folder).glob("*/__init__.py")):
            components = importlib.import_module(f"mm_ldlm.{folder}.{each.parent.name}").COMPONENTS
            assert components.keys() <= groups, each.parent.name
            for group, names in components.items():
                assert names.items() <= contributed(group).items(), "two contributors use one name"
