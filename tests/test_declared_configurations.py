"""Classes of parameters as `config` makes them: what they accept, and by which names they are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import pytest

from mm_ldlm.core.config import PositiveInt, config, parse, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.engines.local import LocalEngineConfig


@config
class Inner:
    size: PositiveInt = 1


@config
class Outer:
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] | None = None
    ratio: float = 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inner": {"sise": 1}}, "'o.inner.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"several": [{}, {"sise": 1}]}, "'o.several.1.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"by_name": {"a": {"sise": 1}}}, "'o.by_name.a.sise' is not known. Did you mean 'size'? Known here: size."),
        ({"rato": 1}, "'o.rato' is not known. Did you mean 'ratio'? Known here: inner, several, by_name, ratio."),
        ({"ratio": float("nan")}, "'o.ratio': Input should be a finite number (found nan)."),
        ({"ratio": float("-inf")}, "'o.ratio': Input should be a finite number (found -inf)."),
        ({"several": [{"size": 0}]}, "'o.several.0.size': Input should be greater than 0 (found 0)."),
    ],
)
def test_a_refused_parameter_is_named_with_the_keys_of_its_own_section(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(Outer, given, at="o")
    assert str(error.value) == f"parameter {message}"


def test_a_configuration_that_is_made_in_code_is_named_by_its_class() -> None:
    with pytest.raises(ConfigurationError, match=r"^parameter 'Inner\.size': Input should be greater than 0"):
        Inner(size=0)
    with pytest.raises(ConfigurationError, match=r"^parameter 'Inner\.sise' is not known"):
        Inner(sise=3)  # type: ignore[call-arg]

    @config
    class Wrong:
        size: PositiveInt = 0

    with pytest.raises(ConfigurationError, match=r"^parameter 'Wrong\.size': "):
        Wrong()


def test_a_refusal_of_what_is_made_in_code_has_a_line_for_each_wrong_value() -> None:
    with pytest.raises(ConfigurationError) as error:
        Outer(ratio="half", by_name={"a": 3}, rato=1)  # type: ignore[arg-type,dict-item,call-arg]
    lines = str(error.value).splitlines()
    assert sorted(line.split("'")[1] for line in lines) == ["Outer.by_name.a", "Outer.ratio", "Outer.rato"]
    assert all(line.startswith("parameter '") for line in lines)


def test_what_a_configuration_accepts_is_decided_where_it_is_declared() -> None:
    """Numbers that are finite, of the declared type or a text of one, by name, once and for all."""

    @config
    class Made:
        ratio: float = 0.5
        size: PositiveInt = 1
        word: Literal["alpha", "beta"] = "alpha"
        address: str = ""

        def __post_init__(self) -> None:
            if self.address:
                raise ValueError(f"no such address as {self.address}")

    for wrong, message in (
        ({"ratio": math.nan}, "'m.ratio': Input should be a finite number (found nan)."),
        ({"ratio": -math.inf}, "'m.ratio': Input should be a finite number (found -inf)."),
        ({"size": "x"}, "'m.size': Input should be a valid integer, unable to parse string as an integer (found 'x')."),
        ({"word": "alhpa"}, "'m.word': Input should be 'alpha' or 'beta' (found 'alhpa'). Did you mean 'alpha'?"),
        ({"word": 3}, "'m.word': Input should be 'alpha' or 'beta' (found 3)."),
        ({"other": 1}, "'m.other' is not known. Known here: ratio, size, word, address."),
        ({"address": "x"}, "'m': no such address as x."),
    ):
        with pytest.raises(ConfigurationError) as error:
            parse(Made, wrong, at="m")
        assert str(error.value) == f"parameter {message}"
    with pytest.raises(ConfigurationError, match=r"no such address as https://\*\*\*@host") as error:
        Made(address="https://me:secretword@host")
    assert "secretword" not in str(error.value)
    made = parse(Made, {"size": "3", "ratio": 2}, at="m")
    assert (made.size, made.ratio) == (3, 2.0)
    assert parse(Made, made, at="m") is made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.size = 4  # type: ignore[misc]
    with pytest.raises(ConfigurationError):
        Made(0.5)  # type: ignore[misc]
    assert vars(Made)["_made_by_mm_ldlm_config"] is True


def test_a_kind_without_parameters_of_its_own_has_its_kind_alone() -> None:
    assert parse(LocalEngineConfig, {}, at="e") == LocalEngineConfig(kind="local")
    with pytest.raises(
        ConfigurationError, match=r"^parameter 'e\.kin' is not known\. Did you mean 'kind'\? Known here: kind"
    ):
        parse(LocalEngineConfig, {"kin": "local"}, at="e")


@config
class Deeper:
    outer: Outer = Outer()


def test_the_keys_of_a_section_inside_a_section_are_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^parameter 'd\.outer\.inner\.sise' is not known\. .* Known here: size\."
    ):
        parse(Deeper, {"outer": {"inner": {"sise": 1}}}, at="d")
    assert to_dict({1: (Inner(size=2), "a")}) == {"1": [{"size": 2}, "a"]}
