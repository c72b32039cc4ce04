"""Every leaf of the parameters of several environments, with values that no run can have.

Each is accepted or refused before the first node, by a project error of at most three lines that names the full key.
"""

from __future__ import annotations

import math
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.app.config_loader import LayeredConfigLoader
from mm_ldlm.app.parameters import check_parameters, flatten
from mm_ldlm.core.config import DEEPEST, InvalidValue, PositiveInt, config, parse
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError
from mm_ldlm.core.messages import show, summarise
from mm_ldlm.settings import CONFIG_LOADER_ARGS

Key = tuple[str | int, ...]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


HOSTILE: dict[str, Any] = {
    "none": None,
    "nan": math.nan,
    "infinity": -math.inf,
    "1e308": 1e308,
    "2**63": 2**63,
    "10**30": 10**30,
    "negative": -1,
    "empty": "",
    "word": "banana",
    "surrogate": "\ud800",
    "nul": "a\0b",
    "line breaks": "a\nb\nc\nd\ne",
    "long": "x" * 100_000,
    "list": [1, "a"],
    "deep": deep(3000),
    "keys": {1: 2, "a": 3},
    "object": object(),
}
NEVER = ("nan", "infinity", "1e308", "surrogate", "nul", "deep", "keys", "object")
"""Values that no parameter accepts."""
ENVIRONMENTS = ("base", "hdlm+own_csv", "ccdd", "digits", "classification_trunk", "tatoeba+mdlm", "atat")


def leaves(value: Any, key: Key = ()) -> Iterator[Key]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from leaves(each, (*key, name))
    if not isinstance(value, dict):
        yield key


def put(value: Any, key: Key, new: Any) -> Any:
    if not key:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key[0]] = put(value[key[0]], key[1:], new)  # type: ignore[index]
    return changed


def loaded(project: Path, environment: str) -> dict[str, Any]:
    found: dict[str, Any] = LayeredConfigLoader(project / "conf", env=environment, **CONFIG_LOADER_ARGS)["parameters"]
    return found


def faults(project: Path, environment: str, *, every: int, seed: int = 0) -> list[str]:
    """Faults of the refusals, of every value or of one in `every` values of each leaf."""
    given = loaded(project, environment)
    typed = {"seed": given["seed"], **check_parameters(given)}  # the sections that stay as they are
    found = []
    for key in leaves(given):
        path = ".".join(map(str, key))
        for number, (name, value) in enumerate(HOSTILE.items()):
            if (zlib.crc32(f"{environment} {path}".encode()) + number + seed) % every:
                continue
            started = time.monotonic()
            if fault := fault_of({**typed, key[0]: put(given, key, value)[key[0]]}, path, name):
                found.append(f"--env={environment} {path} = {name}: {fault}")
            if time.monotonic() - started > 20:
                found.append(f"--env={environment} {path} = {name}: took more than 20 s")
    return found


def fault_of(parameters: dict[str, Any], path: str, name: str) -> str | None:
    try:
        check_parameters(parameters)
    except MMLDLMError as error:
        message = str(error)
    except Exception as error:
        return f"{type(error).__name__} instead of a project error"
    else:
        return "was accepted" if name in NEVER else None
    if len(message.splitlines()) > 3 or len(message) > 4000:
        return f"a message of {len(message.splitlines())} lines and {len(message)} characters"
    if not message.isascii() and "\ud800" in message:
        return "a message that cannot be printed"
    return None if names(message, path) else f"the key is missing in: {message[:300]}"


def names(message: str, path: str) -> bool:
    """Whether a message names the key, a key inside the value, or the list that the key is in."""
    return any(
        key == path or key.startswith(f"{path}.") or re.match(rf"{re.escape(key)}\.\d", path)
        for key in re.findall(r"'([^']+)'", message)
    )


@pytest.mark.parametrize("environment", ENVIRONMENTS[:2])
def test_a_hostile_value_of_any_leaf_is_refused_by_its_full_key(project: Path, environment: str) -> None:
    """One value of each leaf, another one in each environment; `make test-slow` tries all of them."""
    assert not (found := faults(project, environment, every=len(HOSTILE))), "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_hostile_value_of_any_leaf_is_refused_by_its_full_key(project: Path, environment: str) -> None:
    assert not (found := faults(project, environment, every=1)), "\n".join(found[:20])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.device", "banana"),
        ("training.device", "meta"),
        ("sampling.device", "auto"),
        ("model.mlp_ratio", 1e308),
        ("model.mlp_ratio", 1e6),
        ("model.dim", 2_147_483_648),
        ("model.depth", 10**9),
        ("training.max_steps", 10**30),
        ("training.batch.examples", 10**9),
        ("training.collective_timeout_minutes", 1e29),
        ("training.launch.processes", 10**9),
        ("training.run_name", "x" * 300),
        ("embedding.processes", 10**9),
        ("encoder.batch_tokens", 10**9),
        ("tokenizer.max_length", 10**9),
        ("sampling.rows", 10**9),
        ("sampling.text.steps", 10**9),
        ("sampling.search.candidates", 10**9),
        ("sampling.unconditional.count", 10**9),
        ("sampling.text.temperature", 1e300),
        ("evaluation.bootstrap.replicates", 10**9),
        ("ingestion.max_row_bytes", 2**31),
        ("seed", 2**63),
    ],
)
def test_what_the_parameters_decide_is_refused_before_the_first_node(project: Path, key: str, value: Any) -> None:
    path: Key = tuple(key.split("."))
    with pytest.raises(ConfigurationError) as error:
        check_parameters(put(loaded(project, "base"), path, value))
    assert str(error.value).startswith(f"parameter '{key}': ")


def test_the_sections_of_all_parameters_are_strings(project: Path) -> None:
    for wrong in ({3: {}}, {None: 1}, {"a": {"b": {True: 1}}}, {"\ud800": 1}):
        with pytest.raises(ConfigurationError) as error:
            check_parameters({**loaded(project, "base"), **wrong})
        str(error.value).encode()


# -- credentials ------------------------------------------------------------------------------------------------------

SENTINEL = "sentinel-5PfQ"
SECRETS = (
    f"https://user:{SENTINEL}@host/path",
    f"postgresql://user:with/{SENTINEL}@host",
    f"https://host/path?token={SENTINEL}",
)


def test_no_parameter_accepts_a_secret(project: Path) -> None:
    """Every text of the parameters: it is refused, and neither the message nor what is stored contains it."""
    given_ = loaded(project, "base")
    typed = {"seed": 0, **check_parameters(given_)}
    doors = [key for key in leaves(given_) if isinstance(_at(given_, key), (str, type(None)))]
    assert len(doors) > 60
    for number, key in enumerate(doors):
        planted = put(given_, key, SECRETS[number % len(SECRETS)])
        assert SENTINEL not in str(flatten(planted))
        with pytest.raises(ConfigurationError) as error:
            check_parameters({**typed, key[0]: planted[key[0]]})
        assert SENTINEL not in str(error.value), key
        assert f"'{'.'.join(map(str, key))}'" in str(error.value), key


def _at(value: Any, key: tuple[str | int, ...]) -> Any:
    for part in key:
        value = value[part]
    return value


@pytest.mark.parametrize("uri", [*SECRETS, f"https://{SENTINEL}@host"])
def test_a_tracking_uri_with_credentials_names_the_variables(project: Path, uri: str) -> None:
    with pytest.raises(ConfigurationError, match="MLFLOW_TRACKING_USERNAME") as error:
        check_parameters(put(loaded(project, "base"), ("tracking", "uri"), uri))
    assert SENTINEL not in str(error.value)


# -- messages ----------------------------------------------------------------------------------------------------------


@config
class Pair:
    low: PositiveInt = 1
    high: PositiveInt = 2

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise InvalidValue(f"high {self.high} is below low {self.low}", "high", "low")


@config
class Box:
    pairs: tuple[Pair, ...] = ()


def test_values_that_do_not_fit_one_another_are_named_by_their_keys() -> None:
    with pytest.raises(ConfigurationError, match=r"^parameters 'box\.high' and 'box\.low': high 1 is below low 2\.$"):
        parse(Pair, {"low": 2, "high": 1}, at="box")


def test_the_key_is_named_inside_lists() -> None:
    with pytest.raises(ConfigurationError, match=r"'box\.pairs\.1\.high' and 'box\.pairs\.1\.low': high 1 is below"):
        parse(Box, {"pairs": [{}, {"low": 5, "high": 1}]}, at="box")


@config
class Choice:
    length: str | int = "all"
    paths: str | tuple[str, ...] | None = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": math.inf}, r"^parameter 'it\.length': Input .* string, or: Input .* number \(found inf\)\.$"),
        ({"paths": [1]}, r"^parameter 'it\.paths"),
        ({"length": [], "paths": 1}, r"^parameter 'it\.length': .*\nparameter 'it\.paths': .*$"),
    ],
)
def test_the_alternatives_of_a_type_are_no_parts_of_the_key(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(Choice, given, at="it")


def test_parameters_have_a_greatest_depth() -> None:
    with pytest.raises(ConfigurationError, match=f"at most {DEEPEST} nested mappings"):
        parse(Box, deep(DEEPEST + 1), at="box")
    with pytest.raises(ConfigurationError, match=r"'box\.a' is not known"):
        parse(Box, deep(DEEPEST - 1), at="box")


def test_many_problems_are_three_lines_that_name_each_parameter() -> None:
    problems = [f"parameter 'a.{number}': expected one thing, found another." for number in range(9)]
    lines = summarise(problems).splitlines()
    assert lines[:2] == problems[:2]
    assert len(lines) == 3
    assert all(f"'a.{number}'" in lines[2] for number in range(2, 9))
    assert summarise(problems[:3]).splitlines() == problems[:3]


@pytest.mark.parametrize("value", [*HOSTILE.values(), deep(10), "\x1b[31m", "http://me:pw-sentinel@host"])
def test_a_value_in_a_message_is_one_short_printable_line(value: Any) -> None:
    shown = show(value)
    assert len(shown) < 1000
    assert shown.isprintable()
    assert "sentinel" not in shown
