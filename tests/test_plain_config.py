"""Configurations where pydantic is not installed, as on a host that only reads specs: keys are still checked."""

import dataclasses
import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import pytest

import mm_ldlm.core.config
from mm_ldlm.core.errors import ConfigurationError


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`mm_ldlm.core.config`, imported again without pydantic."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    spec = importlib.util.spec_from_file_location("config_without_pydantic", mm_ldlm.core.config.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.pydantic is None
    return module


@pytest.fixture
def section(plain: ModuleType) -> Any:
    @plain.config
    class Inner:
        size: plain.PositiveInt
        name: str = "x"

        def __post_init__(self) -> None:
            if self.name == "bad":
                raise plain.InvalidValue("'size' does not fit 'name'", "size", "name")

    @plain.config
    class Section:
        inner: Inner
        seed: int = 3
        perhaps: Inner | None = None
        several: tuple[Inner, ...] = ()
        pair: tuple[str, Inner] | None = None
        by_name: dict[str, Inner] = dataclasses.field(default_factory=dict)
        ratio: plain.Fraction | None = None
        words: tuple[str, ...] = ()

    return plain, Section, Inner


def test_a_section_is_built_with_its_types_at_every_depth(section: Any) -> None:
    plain, Section, Inner = section
    two = {"size": 2}
    made = plain.parse(
        Section,
        {
            "inner": two, "perhaps": {"size": 3, "name": "y"}, "several": [two, two], "pair": ["a", two],
            "by_name": {"k": two}, "ratio": 0.5, "words": ["a", "b"],
        },
        at="s",
    )  # fmt: skip
    whole = Inner(size=2)
    assert made == Section(
        inner=whole, perhaps=Inner(size=3, name="y"), several=(whole, whole), pair=("a", whole), by_name={"k": whole},
        ratio=0.5, words=("a", "b"),
    )  # fmt: skip
    assert made.seed == 3
    assert plain.parse(Section, {"inner": two, "perhaps": None, "ratio": None}, at="s") == Section(inner=whole)
    assert plain.parse(Section, {"inner": two, "words": "a"}, at="s").words == ("a",), "a value is a list of one"
    assert plain.parse(Section, json.loads(json.dumps(plain.to_dict(made))), at="s") == made
    assert plain.parse(Section, made, at="s") is made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.seed = 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"inner": {"size": 1}, "sead": 1},
            r"^parameter 's\.sead' is not known\. Did you mean 'seed'\? Known here: inner,",
        ),
        ({"inner": {"size": 1, "nam": 1}}, r"^parameter 's\.inner\.nam' is not known\. Did you mean 'name'\?"),
        (
            {"inner": {"size": 1}, "several": [{"size": 1}, {"sizes": 1}]},
            r"^parameter 's\.several\.1\.sizes' is not known",
        ),
        ({"inner": {"size": 1}, "by_name": {"k": {"x": 1}}}, r"^parameter 's\.by_name\.k\.x' is not known"),
        ({"inner": {"size": 1}, "pair": ["a", {"x": 1}]}, r"^parameter 's\.pair\.1\.x' is not known"),
        ({}, r"^parameter 's': .* missing .*'inner'"),
        ({"inner": {"name": "y"}}, r"^parameter 's\.inner': .* missing .*'size'"),
        (
            {"inner": {"size": 1, "name": "bad"}},
            r"^parameters 's\.inner\.size' and 's\.inner\.name': 'size' does not fit 'name'\.$",
        ),
        ({"inner": {"size": 1, "name": "https://me:pw@host"}}, r"found a password or a token"),
        (3, r"^parameter 's': expected a mapping of Section, found 3\.$"),
    ],
)
def test_keys_are_refused_by_their_full_paths(section: Any, value: Any, message: str) -> None:
    plain, Section, _ = section
    with pytest.raises(ConfigurationError, match=message):
        plain.parse(Section, value, at="s")
