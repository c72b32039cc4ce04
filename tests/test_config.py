"""Parameters whose type is chosen by `kind`: where kinds can occur, where they are found, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Protocol

import pytest

import mm_ldlm.core.config
import mm_ldlm.core.kinds
from mm_ldlm.core.config import PositiveInt, config, parse, parse_kind, to_dict
from mm_ldlm.core.config_errors import name_keys
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.kinds import Kinds
from mm_ldlm.data.engines.base import ENGINES
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS


class AnyShape(Protocol):
    """Interface of the shapes."""

    kind: str
    corners: ClassVar[int]

    def area(self) -> float: ...


SHAPES = Kinds(
    "shape", {"circle": "shapes_of_a_test:Circle", "square": "shapes_of_a_test:Square"}, group="mm_ldlm.test_shapes",
    interface=AnyShape,
)  # fmt: skip
Shape = Annotated[Any, SHAPES]


@config
class Circle:
    kind: str = "circle"
    radius: PositiveInt = 1
    corners: ClassVar[int] = 0

    def area(self) -> float:
        return 1.0


@config
class Square:
    kind: str = "square"
    side: PositiveInt
    inside: Shape | None = None
    corners: ClassVar[int] = 4

    def area(self) -> float:
        return 1.0


@config
class Triangle:
    """Belongs to another package."""

    kind: str = "triangle"
    base: PositiveInt = 1
    corners: ClassVar[int] = 3

    def area(self) -> float:
        return 1.0


@dataclasses.dataclass
class Plain:
    """Has the interface, but was not made by `config`, so its values would not be checked."""

    kind: str = "plain"
    corners: ClassVar[int] = 0

    def area(self) -> float:
        return 1.0


class Undecorated(Circle):
    """Inherits the fields of a configuration without being made by `config`."""


@config
class Base(ABC):
    kind: str = "base"
    corners: ClassVar[int] = 0

    @abstractmethod
    def area(self) -> float: ...


@config
class Box:
    shape: Shape
    label: str = ""


@config
class Drawing:
    one: Shape | None = None
    required: Shape = dataclasses.field(default_factory=lambda: Circle())
    optional: Shape | None = None
    box: Box | None = None
    several: tuple[Shape, ...] = ()
    pair: tuple[int, Box] | None = None
    boxes: list[Box] = dataclasses.field(default_factory=list)
    by_name: dict[str, Shape] = dataclasses.field(default_factory=dict)
    boxes_by_name: Mapping[str, Box] = dataclasses.field(default_factory=dict)
    perhaps_by_name: dict[str, Shape] | None = None
    lists_by_name: dict[str, tuple[Shape, ...]] = dataclasses.field(default_factory=dict)


@pytest.fixture(autouse=True)
def shapes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the registry's paths lead to."""
    module = ModuleType("shapes_of_a_test")
    module.__dict__.update(Circle=Circle, Square=Square, Triangle=Triangle, Box=Box, number=3)
    module.__dict__.update(Plain=Plain, Undecorated=Undecorated, Base=Base)
    monkeypatch.setitem(sys.modules, "shapes_of_a_test", module)
    return module


CIRCLE = {"kind": "circle", "radius": 2}
SQUARE = {"kind": "square", "side": 3}

# key → value in the parameters, value after parsing
PLACES: dict[str, tuple[Any, Any]] = {
    "one": (CIRCLE, Circle(radius=2)),
    "optional": (CIRCLE, Circle(radius=2)),
    "box": ({"shape": SQUARE}, Box(shape=Square(side=3))),
    "several": ([CIRCLE, SQUARE], (Circle(radius=2), Square(side=3))),
    "pair": ([4, {"shape": SQUARE}], (4, Box(shape=Square(side=3)))),
    "boxes": ([{"shape": CIRCLE}, {"shape": SQUARE}], [Box(shape=Circle(radius=2)), Box(shape=Square(side=3))]),
    "by_name": ({"a": CIRCLE, "b": SQUARE}, {"a": Circle(radius=2), "b": Square(side=3)}),
    "boxes_by_name": ({"a": {"shape": SQUARE}}, {"a": Box(shape=Square(side=3))}),
    "perhaps_by_name": ({"a": CIRCLE}, {"a": Circle(radius=2)}),
    "lists_by_name": ({"a": [CIRCLE, SQUARE]}, {"a": (Circle(radius=2), Square(side=3))}),
}
WITHOUT_PYDANTIC = pytest.mark.parametrize("pydantic", [True, False], ids=["pydantic", "plain"])


@WITHOUT_PYDANTIC
@pytest.mark.parametrize("place", PLACES)
def test_a_kind_is_resolved_wherever_it_stands(place: str, pydantic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a field, a nested configuration, lists, tuples, dictionaries, and where a value may be absent."""
    if not pydantic:
        monkeypatch.setattr(mm_ldlm.core.config, "pydantic", None)
    value, expected = PLACES[place]
    assert getattr(parse(Drawing, {place: value}, at="drawing"), place) == expected


def test_kinds_are_resolved_at_every_depth() -> None:
    nested = {"kind": "square", "side": 1, "inside": {"kind": "square", "side": 2, "inside": CIRCLE}}
    found = parse(Drawing, {"box": {"shape": nested}}, at="drawing")
    assert found.box == Box(shape=Square(side=1, inside=Square(side=2, inside=Circle(radius=2))))


def test_an_annotation_with_kinds_may_be_a_union() -> None:
    """Unions hash what they join."""
    assert hash(SHAPES) == hash(dataclasses.replace(SHAPES, known={}))
    assert dataclasses.replace(SHAPES, known={}) != SHAPES


def test_an_absent_value_stays_absent_and_a_configuration_stays_itself() -> None:
    made = Circle(radius=7)
    found = parse(Drawing, {"one": None, "optional": None, "box": None, "several": [made]}, at="drawing")
    assert (found.one, found.optional, found.box, found.several) == (None, None, None, (made,))
    assert parse_kind(SHAPES, made, at="shape") is made
    assert parse(Drawing, found, at="drawing") is found


# -- where kinds come from ----------------------------------------------------------------------------------------


def install(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Let another package register configurations as entry points of SHAPES."""

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint(*point, group) for point in points if group == SHAPES.group]

    monkeypatch.setattr(mm_ldlm.core.kinds, "entry_points", entry_points)


def test_a_kind_of_another_package_comes_from_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = {"kind": "triangle", "base": 5}
    with pytest.raises(ConfigurationError, match="expected a shape, found 'triangle'"):
        parse_kind(SHAPES, mapping, at="shape")
    install(monkeypatch, ("triangle", "shapes_of_a_test:Triangle"))
    assert parse_kind(SHAPES, mapping, at="shape") == Triangle(base=5)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'triangle'\? Known here: circle, square, triangle;"):
        parse_kind(SHAPES, {"kind": "trangle"}, at="shape")


def test_an_entry_point_of_the_same_name_does_not_replace_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("circle", "shapes_of_a_test:Triangle"))
    assert parse_kind(SHAPES, CIRCLE, at="shape") == Circle(radius=2)


def test_a_kind_may_be_an_import_path() -> None:
    mapping = {"kind": "shapes_of_a_test:Triangle", "base": 5}
    found = parse(Drawing, {"by_name": {"mine": mapping}}, at="drawing").by_name["mine"]
    assert isinstance(found, Triangle)
    assert to_dict(found) == mapping


def test_an_entry_point_has_the_interface_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, ("box", "shapes_of_a_test:Box"), ("nothing", "shapes_of_a_test"))
    with pytest.raises(ConfigurationError, match=r"_of_a_test:Box, which is not one: it has no 'kind', 'corners'"):
        parse_kind(SHAPES, {"kind": "box"}, at="shape")
    with pytest.raises(ConfigurationError, match="shapes_of_a_test cannot be imported"):
        parse_kind(SHAPES, {"kind": "nothing"}, at="shape")


@pytest.mark.parametrize("kinds", [MODELS, OBJECTIVES, TEXT_PROCESSES, TEXT_SAMPLERS, LATENT_SAMPLERS])
def test_a_component_of_another_room_is_refused(kinds: Kinds) -> None:
    """Every registry refuses the configurations of all others, as import paths and as objects."""
    for other in (MODELS, OBJECTIVES, TEXT_PROCESSES, TEXT_SAMPLERS, LATENT_SAMPLERS):
        kind, path = next(iter(other.known.items()))
        value = {"kind": path}
        if other is kinds:
            assert parse_kind(kinds, value, at="it") == parse_kind(kinds, {"kind": kind}, at="it")
            continue
        with pytest.raises(ConfigurationError, match=rf"'it\.kind': expected an? {kinds.what}, found {path}, which is"):
            parse_kind(kinds, value, at="it")
        with pytest.raises(ConfigurationError, match=rf"'it': expected an? {kinds.what}, found"):
            parse_kind(kinds, parse_kind(other, {"kind": kind}, at="it"), at="it")


def test_a_registered_class_has_its_registered_name_however_it_was_chosen() -> None:
    made = parse_kind(TEXT_SAMPLERS, {"kind": "mm_ldlm.sampling.ancestral:AncestralConfig"}, at="it")
    assert made.kind == "ancestral"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class :", "SyntaxError"),
        ("raise RuntimeError('no such device')", "RuntimeError: no such device"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import no_such_package", "No module named 'no_such_package'"),
        ("", "has no attribute 'Shape'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_by_its_path(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_shapes.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_shapes", raising=False)
    with pytest.raises(ConfigurationError, match=rf"'it\.kind': faulty_shapes:Shape cannot be imported \(.*{reason}"):
        parse_kind(SHAPES, {"kind": "faulty_shapes:Shape"}, at="it")
    sys.modules.pop("faulty_shapes", None)


def test_an_interrupted_import_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_shapes.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        parse_kind(SHAPES, {"kind": "slow_shapes:Shape"}, at="it")


# -- refusals, each with the parameter's full path ----------------------------------------------------------------


@WITHOUT_PYDANTIC
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"one": {"kind": "circel"}},
            r"'drawing\.one\.kind': expected a shape, found 'circel'\. Did you mean 'circle'",
        ),
        (
            {"one": {"kind": 3}},
            r"'drawing\.one\.kind': expected a shape, found 3\. Known here: circle, square; or give",
        ),
        ({"one": {"kind": None}}, r"'drawing\.one\.kind': expected a shape, found None"),
        ({"one": {"radius": 2}}, r"'drawing\.one\.kind' is missing .* Choose a shape: circle, square\."),
        ({"one": "circle"}, r"'drawing\.one': expected a mapping with the key 'kind', found 'circle'"),
        ({"one": {**CIRCLE, "side": 1}}, r"'drawing\.one\.side' is not known\..*Known here: kind, radius\."),
        ({"one": {**SQUARE, "inside": {**CIRCLE, "side": 1}}}, r"'drawing\.one\.inside\.side' is not known\..*radius"),
        ({"box": {"shape": {**CIRCLE, "side": 1}}}, r"'drawing\.box\.shape\.side' is not known"),
        ({"several": [CIRCLE, {**SQUARE, "radius": 1}]}, r"'drawing\.several\.1\.radius' is not known.*kind, side"),
        ({"boxes": [{"shape": CIRCLE}, {"shape": {}}]}, r"'drawing\.boxes\.1\.shape\.kind' is missing"),
        ({"by_name": {"a": CIRCLE, "b": {"kind": "x"}}}, r"'drawing\.by_name\.b\.kind': expected a shape, found 'x'"),
        ({"boxes_by_name": {"a": {"shape": {"kind": "x"}}}}, r"'drawing\.boxes_by_name\.a\.shape\.kind': expected"),
        ({"perhaps_by_name": {"a": {"kind": "x"}}}, r"'drawing\.perhaps_by_name\.a\.kind': expected"),
        ({"lists_by_name": {"a": [CIRCLE, {"kind": "x"}]}}, r"'drawing\.lists_by_name\.a\.1\.kind': expected"),
        ({"one": {"kind": "no_such_package:Shape"}}, r"'drawing\.one\.kind': no_such_package:Shape cannot be imported"),
        ({"one": {"kind": "shapes_of_a_test:Cube"}}, r"'drawing\.one\.kind': .*Cube cannot be imported .*Correct the"),
        ({"one": {"kind": "shapes_of_a_test:number"}}, r"'drawing\.one\.kind': .*number is not a configuration"),
        ({"one": {"kind": "shapes_of_a_test:Plain"}}, r"'drawing\.one\.kind': .*Plain is not a configuration"),
        ({"one": {"kind": "shapes_of_a_test:Undecorated"}}, r"'drawing\.one\.kind': .* is not a configuration"),
        ({"one": {"kind": "shapes_of_a_test:Base"}}, r"'drawing\.one\.kind': .*Base is the abstract base"),
        ({"one": {"kind": "shapes_of_a_test:Box"}}, r"'drawing\.one\.kind': .* has no 'kind', 'corners', 'area'"),
        ({"one": Box(shape=Circle())}, r"'drawing\.one': expected a shape, found Box, which .* 'corners', 'area'"),
        ({"one": {"kind": ["circle"]}}, r"'drawing\.one\.kind': expected a shape, found \['circle'\]"),
        ({"one": {"kind": {"a": 1}}}, r"'drawing\.one\.kind': expected a shape, found \{'a': 1\}"),
        ({"one": {"kind": ":"}}, r"'drawing\.one\.kind': expected a shape, found ':'"),
        ({"one": {"kind": ":Circle"}}, r"'drawing\.one\.kind': expected a shape, found ':Circle'"),
        ({"one": {"kind": "shapes_of_a_test:"}}, r"'drawing\.one\.kind': expected a shape, found 'shapes_of_a_test:'"),
        ({"one": {"kind": ".shapes:Circle"}}, r"'drawing\.one\.kind': expected a shape, found '\.shapes:Circle'"),
        ({"required": None}, r"'drawing\.required': expected a mapping with the key 'kind', found None"),
        ({"several": [None]}, r"'drawing\.several\.0': expected a mapping with the key 'kind', found None"),
        ({"by_name": {"a": None}}, r"'drawing\.by_name\.a': expected a mapping with the key 'kind', found None"),
    ],
)
def test_refusals_name_the_full_path(
    value: dict[str, Any], message: str, pydantic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pydantic:
        monkeypatch.setattr(mm_ldlm.core.config, "pydantic", None)
    with pytest.raises(ConfigurationError, match=f"parameter {message}"):
        parse(Drawing, value, at="drawing")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"one": {"kind": "square"}}, r"'drawing\.one\.side' is missing and has no default"),
        ({"one": {**CIRCLE, "radius": 0}}, r"'drawing\.one\.radius': .*\(found 0\)"),
        ({"several": [CIRCLE, {**SQUARE, "side": "x"}]}, r"'drawing\.several\.1\.side': .*\(found 'x'\)"),
        (
            {"by_name": {"a": {**CIRCLE, "radius": True}}},
            r"'drawing\.by_name\.a\.radius': expected a number, found True",
        ),
    ],
)
def test_missing_and_invalid_values_name_the_full_path(value: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter {message}"):
        parse(Drawing, value, at="drawing")


# -- the plain form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_the_plain_form_keeps_the_kinds(place: str) -> None:
    made = parse(Drawing, {place: PLACES[place][0]}, at="drawing")
    plain = json.loads(json.dumps(to_dict(made)))
    assert parse(Drawing, plain, at="drawing") == made


REQUIRED: dict[str, dict[str, Any]] = {"blocks": {"inner": {"kind": "confidence"}}}
"""Keys without a default."""


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        (kinds, kind)
        for kinds in (MODELS, OBJECTIVES, TEXT_PROCESSES, TEXT_SAMPLERS, LATENT_SAMPLERS, ENGINES)
        for kind in kinds.known
    ],
    ids=lambda x: x.what if isinstance(x, Kinds) else x,
)
def test_every_registered_configuration_survives_its_plain_form(kinds: Kinds, kind: str) -> None:
    made = parse_kind(kinds, {"kind": kind, **REQUIRED.get(kind, {})}, at="it")
    assert made.kind == kind
    plain = json.loads(json.dumps(to_dict(made)))
    assert next(iter(plain)) == "kind"
    assert parse_kind(kinds, plain, at="it") == made


@config
class Lists:
    names: tuple[str, ...] = ()
    numbers: list[int] | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    boxes: tuple[Box, ...] = ()
    path: str | tuple[str, ...] = ""


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"names": "a.npy"}, "names", ("a.npy",)),
        ({"numbers": 3}, "numbers", [3]),
        ({"numbers": None}, "numbers", None),
        ({"names": ["a", "b"]}, "names", ("a", "b")),
        ({"path": "a"}, "path", "a"),
    ],
)
def test_a_value_in_place_of_a_list_is_a_list_of_one(given: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(parse(Lists, given, at="lists"), field) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pair": 0.5}, "'lists.pair': expected a list, as in \\[a, b\\] \\(found 0.5\\)"),
        ({"boxes": "a"}, "'lists.boxes': expected a list, as in"),
        ({"names": {"a": 1}}, "'lists.names': expected a list, as in"),
        ({"numbers": True}, "'lists.numbers.0': expected a number, found True"),
        ({"numbers": "x"}, "'lists.numbers.0': .*\\(found 'x'\\)"),
    ],
)
def test_a_value_that_no_list_holds_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(Lists, given, at="lists")


@config
class Alternatives:
    shapes: str | dict[str, Shape] | tuple[Shape, ...] = ""
    box: str | Box = ""
    shape: Annotated[Any, SHAPES] | tuple[int, ...] = (1,)


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("shapes", "a name", "a name"), ("shapes", {"a": CIRCLE}, {"a": Circle(radius=2)}),
        ("shapes", [CIRCLE, SQUARE], (Circle(radius=2), Square(side=3))), ("box", "a name", "a name"),
        ("box", {"shape": SQUARE}, Box(shape=Square(side=3))), ("shape", CIRCLE, Circle(radius=2)),
        ("shape", [2, 3], [2, 3]),
    ],
)  # fmt: skip
def test_a_value_becomes_the_alternative_of_its_form(key: str, value: Any, made: Any) -> None:
    assert getattr(parse(Alternatives, {key: value}, at="it"), key) == made


# -- words of refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "keys", "words"),
    [
        ("is odd", ("a",), "parameter 's.a': is odd."),
        ("is odd. Did you mean 'b'?", ("a",), "parameter 's.a': is odd. Did you mean 'b'?"),
        ("do not fit", ("a", "b"), "parameters 's.a' and 's.b': do not fit."),
        ("a\nb https://me:pw@host/x", ("a",), "parameter 's.a': a\\nb https://***@host/x."),
    ],
)
def test_a_refusal_is_one_sentence_about_its_keys(message: str, keys: tuple[str, ...], words: str) -> None:
    assert name_keys("s", keys, message) == words


@pytest.mark.parametrize("value", [{"a": 1}, {}])
def test_a_value_that_is_no_list_is_refused_with_an_example(value: Any) -> None:
    @config
    class Listed:
        names: tuple[str, ...] = ()

    with pytest.raises(ConfigurationError, match=r"parameter 's\.names': expected a list, as in \[a, b\] \(found "):
        parse(Listed, {"names": value}, at="s")
