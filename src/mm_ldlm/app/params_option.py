"""The option `--params`: KEY=VALUE items, with dots in the keys and YAML in the values, become nested parameters."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from mm_ldlm.app.config_loader import merge, parse_yaml
from mm_ldlm.core import ConfigurationError, show
from mm_ldlm.core.typed import DEEPEST

_TOKEN = re.compile(r"""(?<=[\[{,:=])\s*(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*')|.""", re.DOTALL)
"""A quoted text where a value may begin, or one character"""
EXAMPLE = "--params 'sampling.l2t.files=[a.npy,b.npy],reporting.title=\"a, b\"'"
"""An option with a list and with a comma inside a text, for messages; the outer quotes are for the shell."""


def parse_params(text: str) -> dict[str, Any]:
    """Parse the text of `--params` to nested parameters; a later item overrides an earlier one.

    Items are KEY=VALUE, separated by commas, with dots in the keys. A value that begins with a bracket or a quote is
    YAML in its flow style and may contain commas. Any other value is a number, true, false or null as in YAML, and
    otherwise a text, verbatim.

    Raises:
        ConfigurationError: an item is not KEY=VALUE, or its value is not readable. The message has an example.
    """
    given = {}
    for item in _items(text):
        key, equals, value = item.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise ConfigurationError(
                f"--params: expected KEY=VALUE, found {show(item, 80)}. Write a list in brackets, and quote a text "
                f"that contains a comma. Example: {EXAMPLE}."
            )
        given[key.strip()] = _value(value.strip())
    return nested(given)


def _items(text: str) -> Iterator[str]:
    """Split a text at the commas that are in no quoted or bracketed value."""
    item, depth = "", 0
    for token in _TOKEN.findall(text):
        if token in ("[", "{") and (depth or item.rstrip().endswith("=")):
            depth += 1
        depth -= token in ("]", "}") and depth > 0
        if token != "," or depth:
            item += token
        elif item.strip():
            yield item
            item = ""
    if item.strip():
        yield item


def _value(text: str) -> Any:
    if text.startswith(("[", "{", "'", '"')):
        return parse_yaml(text.encode("utf-8", "replace"), file=f"--params, {show(text, 80)}")
    loader = get_yaml_loader()("")
    try:
        return loader.construct_object(yaml.ScalarNode(loader.resolve(yaml.ScalarNode, text, (True, False)), text))
    except (yaml.YAMLError, ArithmeticError, ValueError):  # such as the merge key << and the marker =
        return text


def nested(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Nest parameters whose keys may contain dots, as in `--params`: {"a.b": 1} becomes {"a": {"b": 1}}.

    Keys inside values are taken as they are, and may contain dots.

    Raises:
        ConfigurationError: a key has more than `DEEPEST` names.
    """
    made: dict[str, Any] = {}
    for key, value in parameters.items():
        parts = str(key).split(".")
        if len(parts) > DEEPEST:  # merging and copying are recursive
            raise ConfigurationError(
                f"--params: expected at most {DEEPEST} names in a key, found {len(parts)} in {show(key, 80)}. Write "
                "the key of a parameter."
            )
        for part in reversed(parts):
            value = {part.strip(): value}
        made = merge(made, value)
    return made
