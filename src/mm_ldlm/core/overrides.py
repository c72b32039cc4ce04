"""Text of `--params`: KEY=VALUE items, separated by commas, become nested parameters.

Kedro splits this text at every comma. Here a value may be a list, a mapping or a quoted text with commas in it:
`sampling.l2t.files=[a.npy,b.npy],comparison.members=[{name: a, env: mdlm}, {name: b}]`. A value that begins with a
bracket or a quote is JSON, or YAML in its flow style. Any other value ends at the next comma; it is a number, true,
false or null as in YAML, and otherwise a text as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import yaml
from omegaconf._utils import get_yaml_loader

from mm_ldlm.core.config import DEEPEST
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.core.messages import show

EXAMPLE = "--params 'sampling.l2t.files=[a.npy,b.npy],reporting.title=\"a, b\"'"
"""An option with a list and with a comma inside a text, for messages; the outer quotes are those of the shell."""
_CLOSING = {"[": "]", "{": "}"}
_QUOTES = "'\""


def parse_params(text: str, *, option: str = "--params") -> dict[str, Any]:
    """Parse `text` to nested parameters; a later item overrides an earlier one.

    Args:
        option: what contains the text, for messages.

    Raises:
        ConfigurationError: an item is not KEY=VALUE, or a value is not closed or not readable. The message has the
            position of the fault (the first character is 1) and an example.
    """
    parsed: dict[str, Any] = {}
    for key, value in _items(text, option):
        _put(parsed, key.split("."), value)
    return parsed


def nested(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Nest parameters whose keys may contain dots, as those of `--params` do: {"a.b": 1} becomes {"a": {"b": 1}}.

    Keys inside of values are names of their own, which may contain dots.
    """
    made: dict[str, Any] = {}
    for key, value in parameters.items():
        _put(made, str(key).split("."), value)
    return made


def _items(text: str, option: str) -> Iterator[tuple[str, Any]]:
    start = 0
    while start < len(text):
        if text[start].isspace() or text[start] == ",":
            start += 1
            continue
        end = text.find("=", start)
        key = text[start : end if end >= 0 else len(text)]
        if end < 0 or "," in key:
            _refuse(
                option, start, f"expected KEY=VALUE, found {show(key.partition(',')[0].rstrip(), 80)} without '='",
                "Write a list in brackets, and quote a text that contains a comma",
            )  # fmt: skip
        key = key.strip()
        if not all(part.strip() for part in key.split(".")) or any(mark in key for mark in "[]{}'\""):
            _refuse(
                option, start, f"expected a key such as section.name before '=', found {show(key, 80)}", "Correct it"
            )
        start = end + 1
        end = _end_of_value(text, start, option)
        yield key, _value(text, start, end, option)
        start = end + 1


def _end_of_value(text: str, start: int, option: str) -> int:
    """Return the place after the value that begins at `start`: of a comma, or the end of the text."""
    first = next((place for place in range(start, len(text)) if not text[place].isspace()), len(text))
    if first == len(text) or text[first] not in {*_CLOSING, *_QUOTES}:
        end = text.find(",", start)
        return end if end >= 0 else len(text)
    closed = _end_of_bracket(text, first, option) if text[first] in _CLOSING else _end_of_quote(text, first, option)
    end = next((place for place in range(closed, len(text)) if not text[place].isspace()), len(text))
    if end < len(text) and text[end] != ",":
        _refuse(
            option, end,
            f"expected a comma or the end after {text[closed - 1]}, found {show(text[end : end + 20], 60)}",
            "Separate items by commas, and quote a text that begins with a bracket or a quote",
        )  # fmt: skip
    return end


def _end_of_bracket(text: str, start: int, option: str) -> int:
    """Return the place after the bracket that closes the one at `start`; brackets in quoted texts do not count."""
    opened: list[int] = []
    place, begins = start, True  # whether a scalar may begin here: a quote inside of a plain text is a character of it
    while place < len(text):
        character = text[place]
        if begins and character in _QUOTES:
            place, begins = _end_of_quote(text, place, option), False
            continue
        if character in _CLOSING:
            opened.append(place)
            if len(opened) > DEEPEST:
                _refuse(option, place, f"expected at most {DEEPEST} nested brackets, found more", "Remove some")
        elif character in _CLOSING.values():
            if character != (wanted := _CLOSING[text[opened[-1]]]):
                _refuse(
                    option, place, f"expected {wanted} for the {text[opened[-1]]} at character {opened[-1] + 1}, "
                    f"found {character}", "Close every bracket",
                )  # fmt: skip
            opened.pop()
            if not opened:
                return place + 1
        if not character.isspace():
            begins = character in "[{,:"
        place += 1
    last = opened[-1]
    _refuse(
        option, last, f"expected {_CLOSING[text[last]]} for the {text[last]}, found the end of the text",
        "Close every bracket",
    )  # fmt: skip


def _end_of_quote(text: str, start: int, option: str) -> int:
    """Return the place after the quote that closes the one at `start`, with YAML's escapes: '' and backslashes."""
    quote, place = text[start], start + 1
    while place < len(text):
        if text[place] == "\\" and quote == '"':
            place += 2
        elif text[place] != quote:
            place += 1
        elif quote == "'" and text[place + 1 : place + 2] == quote:
            place += 2
        else:
            return place + 1
    _refuse(
        option, start, f"expected {quote} at the end of the quoted text, found the end of the option", "Close the quote"
    )


def _value(text: str, start: int, end: int, option: str) -> Any:
    value = text[start:end].strip()
    if not value or value[0] not in {*_CLOSING, *_QUOTES}:
        return _plain(value)
    try:
        return json.loads(value, parse_constant=_no_json, object_pairs_hook=_distinct)
    except ValueError:  # not JSON, but perhaps YAML
        pass
    try:
        return yaml.load(value, Loader=get_yaml_loader())  # a subclass of SafeLoader: it makes no objects
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = start + text[start:end].index(value) + (mark.index if mark is not None else 0)
        reason = getattr(error, "problem", None) or str(error)
        _refuse(
            option, place, f"expected a value as in YAML, found {show(value, 80)} ({reason})",
            "Quote texts that contain special characters",
        )  # fmt: skip


def _plain(value: str) -> Any:
    """Read a value without brackets and quotes: a number, true, false or null as YAML reads them, or a text."""
    loader = get_yaml_loader()("")
    tag = loader.resolve(yaml.ScalarNode, value, (True, False))
    try:
        return loader.construct_object(yaml.ScalarNode(tag, value))
    except (yaml.YAMLError, ValueError):  # such as the merge key << and the marker =
        return value


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is repeated")
    return made


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the value at `path`; a mapping is merged with one that is there."""
    for part in path[:-1]:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    below = tree.get(path[-1])
    if isinstance(below, dict) and isinstance(value, Mapping):
        for key, item in value.items():
            _put(below, [key], item)
    else:
        tree[path[-1]] = value


def _refuse(option: str, place: int, found: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"{option}, character {place + 1}: {found}. {remedy}. Example: {EXAMPLE}.")
