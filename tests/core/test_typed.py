"""Typed parameters: what becomes a configuration, and what is refused under which name."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import (
    CheckpointName,
    ConfigurationError,
    Device,
    Fraction,
    InvalidValue,
    PositiveInt,
    SamplingError,
    check,
    config,
    parse,
    refuse_unwritable,
    to_dict,
)
from mm_ldlm.core import typed as module

Refuses = Callable[..., Any]
NUMBERS = {
    name: hint for name, hint in vars(module).items()
    if name[0].isupper() and getattr(hint, "__metadata__", None) and hint.__origin__ in (int, float)
}  # fmt: skip
"""The types of bounded numbers that parameters are made of"""


@config
class Inner:
    RETIRED: ClassVar[dict[str, Any]] = {"shape": "round"}
    size: PositiveInt = 1
    names: tuple[str, ...] = ()


@config
class Section:
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = dataclasses.field(default_factory=dict)
    pair: tuple[int, float] = (1, 2.0)
    colour: Literal["red", "green"] = "red"
    ratio: Fraction | Literal["none"] = 0.5
    either: tuple[str, ...] | str = ()
    low: int = 0
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidValue(f"expected low at most {self.high}, found {self.low}", "low", "high")


VALUES = st.deferred(
    lambda: st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(VALUES, max_size=3),
        st.dictionaries(st.sampled_from(["inner", "size", "names", "several", "pair", "high", "kind", "x", "1"]), VALUES,
                        max_size=4),
    )
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([field.name for field in dataclasses.fields(Section)]), VALUES))
def test_any_mapping_becomes_a_section_or_is_refused_by_the_names_of_its_keys(value: dict[str, Any]) -> None:
    refused = ""
    try:
        made = parse(Section, value, at="section")
    except ConfigurationError as error:
        refused = str(error)
    else:
        assert parse(Section, json.loads(json.dumps(to_dict(made))), at="section") == made
    assert all(line.startswith(("parameter", "and ")) for line in refused.splitlines())
    assert all("section" in line for line in refused.splitlines())


def test_a_mapping_becomes_a_tree_of_types_and_a_single_value_a_list() -> None:
    value = {
        "inner": {"names": "a"},
        "several": [{"size": 2}],
        "by_name": {"k": {"size": 3}},
        "pair": [1, 2],
        "either": "a",
        "high": 3,
    }
    made = parse(Section, value, at="s")
    assert made == Section(
        inner=Inner(names=("a",)), several=(Inner(size=2),), by_name={"k": Inner(size=3)}, pair=(1, 2.0), either="a",
        high=3,
    )  # fmt: skip
    assert parse(Section, made, at="s") is made
    earlier = json.loads(json.dumps(to_dict(made, retired=True)))
    parts = earlier["inner"], *earlier["several"], earlier["by_name"]["k"]
    assert {part.pop("shape") for part in parts} == {"round"}
    assert earlier == to_dict(made)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"high": 1, "inner": {"siz": 2}}, ("'section.inner.siz'", "size")),
        ({"high": 1, "several": [{}, {"size": 0}]}, ("'section.several[1].size'", "0")),
        ({"high": 1, "by_name": {"k": 3}}, ("'section.by_name.k'", "3")),
        ({"high": 1, "pair": [1, "x"]}, ("'section.pair[1]'", "x")),
        ({"high": 1, "colour": "gren"}, ("'section.colour'", "green", "red")),
        ({"high": 1, "ratio": 2}, ("'section.ratio'", "2")),
        ({"high": True, "pair": [1, False]}, ("'section.high'", "True", "'section.pair[1]'", "False")),
        ({"low": 4, "high": 3}, ("'section.low'", "'section.high'", "4")),
        ({}, ("'section.high'",)),
        (3, ("'section'", "3")),
        ({"high": "x", "low": "y", "pair": 3, "colour": 1, "inner": []}, ("section.high", "section.low", "section.pair")),
        ({"high": 1, "pair": [1]}, ("'section.pair'", "longer list", "[1]")),
        ({"high": 1, "pair": [1, 2, 3]}, ("'section.pair'", "[1, 2, 3]")),
        ({"high": 1, "inner": {"shape": "square"}}, ("'section.inner.shape'",)),
        ({"high": 1, "either": ["a", 1]}, ("'section.either[1]'", "1")),
    ],
)  # fmt: skip
def test_a_refusal_names_the_full_path_and_the_value(refuses: Refuses, value: Any, named: tuple[str, ...]) -> None:
    """Pitfall 15: keys that nothing reads are refused."""
    with refuses(ConfigurationError, *named):
        parse(Section, value, at="section")


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_bounded_type_accepts_its_limits_and_nothing_beyond(name: str) -> None:
    hint = NUMBERS[name]
    (bounds,) = (each.metadata for each in hint.__metadata__)
    limits = {key: getattr(bound, key) for bound in bounds for key in ("gt", "ge", "lt", "le") if hasattr(bound, key)}
    assert len(limits) == 2, "a value without a lower and an upper bound may exhaust the memory"
    step = 1 if hint.__origin__ is int else 1e-9
    for key, limit in limits.items():
        outwards = step * max(1, abs(limit)) * (1 if key in ("lt", "le") else -1)
        if hint.__origin__ is int:
            outwards = 1 if key in ("lt", "le") else -1
        inside, outside = (limit, limit + outwards) if key in ("ge", "le") else (limit - outwards, limit)
        check(inside, hint, name=name)
        with pytest.raises(SamplingError):
            check(outside, hint, name=name)


@pytest.mark.parametrize("value", [7, np.int64(7), torch.tensor(7), np.array(7)])
def test_a_scalar_of_any_library_is_a_number(value: Any) -> None:
    assert check(value, PositiveInt, name="steps") == 7


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("7", PositiveInt), (True, PositiveInt), (7.5, PositiveInt), (0, PositiveInt), (None, PositiveInt),
        ([1, 2, "x"], tuple[int, ...]), ("cuda:x", Device), ("later", CheckpointName), (float("nan"), Fraction),
        ("both", Literal["best", "all"]),
    ],
)  # fmt: skip
def test_an_argument_is_refused_by_its_name_in_the_class_of_its_room(refuses: Refuses, value: Any, hint: Any) -> None:
    with refuses(ConfigurationError, "steps"):
        check(value, hint, name="steps", error=ConfigurationError)


def test_a_value_in_python_code_is_checked_as_in_a_file() -> None:
    with pytest.raises(ConfigurationError, match=r"Inner\.size"):
        Inner(size=0)
    with pytest.raises(ConfigurationError, match="sise"):
        Inner(sise=0)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Inner().size = 2  # type: ignore[misc]


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {"a": "\0"}, {"a": "\ud800"}, {"a": _nested(40)}, {"a": [{"b": "http://user:word@host"}]}, {"\ud800": 1}],
)
def test_what_no_file_can_contain_is_refused_without_repeating_it(value: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refuse_unwritable(value, at="")
    assert str(raised.value).isprintable()
    assert "word@" not in str(raised.value)
