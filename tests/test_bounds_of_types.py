"""Types of numbers and names that parameters are made of: the last value that each accepts, and the next one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mm_ldlm.core import config as module
from mm_ldlm.core.config import InvalidValue, PositiveInt, config, parse, refuse_unwritable, to_dict
from mm_ldlm.core.errors import ConfigurationError

TINY = 5e-324
"""The smallest positive number."""
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "PositiveInt": ([1, 10**12], [0, -1, 10**12 + 1]),
    "NonNegativeInt": ([0, 10**12], [-1, 10**12 + 1]),
    "PositiveFloat": ([TINY, 1e30], [0, -TINY, 1.001e30]),
    "NonNegativeFloat": ([0, 1e30], [-TINY, 1.001e30]),
    "Fraction": ([0, 0.5, 1], [-TINY, math.nextafter(1, 2)]),
    "Seed": ([0, 2**63 - 1], [-1, 2**63]),
    "Size": ([1, 65_536], [0, 65_537]),
    "Layers": ([1, 1024], [0, 1025]),
    "LayersOrNone": ([0, 1024], [-1, 1025]),
    "Ratio": ([TINY, 1000], [0, math.nextafter(1000, 2000)]),
    "Rows": ([1, 10**8], [0, 10**8 + 1]),
    "RowsOrNone": ([0, 10**8], [-1, 10**8 + 1]),
    "Bytes": ([1, 2**31 - 1], [0, 2**31]),
    "Repeats": ([1, 100_000], [0, 100_001]),
    "Workers": ([1, 4096], [0, 4097]),
    "WorkersOrNone": ([0, 4096], [-1, 4097]),
    "Duration": ([TINY, 10**7], [0, math.nextafter(1e7, 2e7)]),
    "Device": (["cpu", "cuda", "cuda:0", "cuda:999"], ["auto", "cuda:", "cuda:1000", "mps", "cpu ", "xcpu", "CPU", ""]),
    "AutoDevice": (["auto", "cpu", "cuda", "cuda:7"], ["cuda:", "cuda:1000", "mps", "automatic", ""]),
    "CheckpointName": (
        ["latest", "best", "7", "step-7", "step-00000007", 7],
        ["newest", "step-", "-7", "7.5", "step-7x", "latest ", "xbest", "", None, 7.5, "step7"],
    ),
}
"""Type → values that it accepts, up to its limits, and values that it refuses, just beyond them"""


@pytest.mark.parametrize("name", BOUNDS)
def test_the_limits_of_a_type_are_the_last_values_that_it_accepts(name: str) -> None:
    of: Any = type("Of", (), {"__annotations__": {"value": getattr(module, name)}, "__module__": __name__})
    made: Any = config(of)
    fits, refused = BOUNDS[name]
    for value in fits:
        found = parse(made, {"value": value}, at="it").value
        assert found == (str(value) if name == "CheckpointName" else value)
    for value in [*refused, math.nan, math.inf, -math.inf, True, [1], {}]:
        with pytest.raises(ConfigurationError, match=r"^parameter 'it\.value'"):
            parse(made, {"value": value}, at="it")


@config
class Two:
    kind: str = "two"
    a: PositiveInt = 1
    b: PositiveInt = 1
    pair: tuple[int, float] = (1, 2.0)

    def __post_init__(self) -> None:
        if self.b < self.a:
            raise InvalidValue("b is below a", "b", "a")


def test_everything_that_is_wrong_with_an_object_made_in_code_is_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        Two(a=0, b="x", c=1)  # type: ignore[arg-type, call-arg]
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0].split("'")[1] for line in lines] == ["Two.a", "Two.b", "Two.c"]
    with pytest.raises(ConfigurationError, match=r"^parameters 'Two\.b' and 'Two\.a': b is below a\.$"):
        Two(a=2, b=1)


def test_every_truth_value_in_place_of_a_number_is_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(Two, {"b": True, "pair": [False, True]}, at="it")
    assert str(error.value).splitlines() == [
        "parameter 'it.b': expected a number, found True.",
        "parameter 'it.pair.0': expected a number, found False.",
        "parameter 'it.pair.1': expected a number, found True.",
    ]


def test_the_kind_of_a_component_comes_first_and_the_other_keys_in_their_order() -> None:
    @config
    class Late:
        z: int = 1
        b: float = 2.0
        kind: str = "late"
        a: int = 3

    assert list(to_dict(Late())) == ["kind", "z", "b", "a"]
    assert to_dict({1: Late(), "x": (Late(), None)}) == {"1": to_dict(Late()), "x": [to_dict(Late()), None]}


@pytest.mark.parametrize(
    ("value", "at", "words"),
    [
        ({"a": {"b": "\0"}}, "", "parameter 'a.b': expected a text in Unicode without NUL characters, found '\\x00'"),
        ({"a": "\ud800"}, "it", "parameter 'it.a': expected a text in Unicode without NUL characters, found"),
        ({"a": ["x", ("\0",)]}, "it", "parameter 'it.a.1.0': expected a text in Unicode without NUL characters"),
        ({"a\0": 1}, "", "a key of the parameters: expected a text in Unicode without NUL characters, found 'a\\x00'"),
        ({"x": {"a\0": 1}}, "it", "a key of parameter 'it.x': expected a text in Unicode without NUL characters"),
        ({3: 1}, "", "the parameters: expected strings as keys, found 3 (int). Quote the key."),
        ({"a": {None: 1}}, "it", "parameter 'it.a': expected strings as keys, found None (NoneType). Quote the key."),
        ({"a": "http://u:pw@h"}, "it", "parameter 'it.a': found a password or a token in 'http://***@h'; parameters "
         "are stored with every run. Remove it and set it in the environment: MLFLOW_TRACKING_USERNAME and "
         "MLFLOW_TRACKING_PASSWORD, or HF_TOKEN."),
    ],
)  # fmt: skip
def test_what_no_file_can_contain_is_refused_with_its_path(value: Any, at: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        refuse_unwritable(value, at=at)
    assert str(error.value).startswith(words)


def test_lists_and_mappings_count_for_the_depth_alike() -> None:
    def nested(levels: int) -> Any:
        value: Any = "x"
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    refuse_unwritable(nested(module.DEEPEST), at="it")
    with pytest.raises(ConfigurationError, match=r"^parameter 'it\..*': expected at most 32 nested mappings and lists"):
        refuse_unwritable(nested(module.DEEPEST + 1), at="it")
