"""Refusals of invalid parameters: the errors of pydantic in the words of the parameters."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from mm_ldlm.core.credentials import mask
from mm_ldlm.core.messages import escape, nearest, show

_QUOTED = re.compile(r"'([^']*)'")
"""A choice in a message of pydantic."""
_BRANCH = re.compile(r"^(str|int|float|bool|(tuple|list|dict)\[.*\])$")
"""The last part of the location of an error in a union, as pydantic names it: the type that was tried."""


def without_branches(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """Join the errors of the alternatives of a union into one whose location is that of the parameter."""
    joined: dict[Any, dict[str, Any]] = {}
    for place, item in enumerate(errors):
        rest = item["loc"][:-1]
        siblings = [each for each in errors if each["loc"][:-1] == item["loc"][:-1] and _is_branch(each)]
        if len(siblings) < 2 or not _is_branch(item):
            joined[place] = item
        elif rest in joined:
            joined[rest]["msg"] += f", or: {item['msg']}"
        else:
            joined[rest] = {**item, "loc": rest, "type": "union"}
    return list(joined.values())


def _is_branch(item: Any) -> bool:
    return bool(item["loc"]) and bool(_BRANCH.match(str(item["loc"][-1])))


def explain(cls: type, at: str, item: Mapping[str, Any]) -> str:
    """Return the refusal that an error of pydantic becomes; `at` is the path of the section of type `cls`."""
    location = [str(part) for part in item["loc"] if not str(part).startswith(("function-", "tagged-"))]
    path = escape(".".join([at, *location]))
    if keys := getattr(item.get("ctx", {}).get("error"), "keys", ()):
        return name_keys(path, keys, str(item["ctx"]["error"]))
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _known_keys(cls, location[:-1])
        return f"parameter '{path}' is not known.{nearest(location[-1], known)} Known here: {', '.join(known)}."
    if item["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"parameter '{path}' is missing and has no default."
    return f"parameter '{path}': {reason(item)}"


def reason(item: Mapping[str, Any]) -> str:
    """Return what an error of pydantic expected and found, without the name of the parameter or argument."""
    found = item.get("input")
    message = escape(mask(str(item["msg"]).removeprefix("Value error, ")))
    if item["type"] == "tuple_type":
        message = "expected a list, as in [a, b]"
    if item["type"] == "value_error" and not isinstance(found, (str, int, float, list, tuple)):
        return f"{message}."  # an error of a whole section: the message contains the values
    hint = nearest(found, _QUOTED.findall(item["ctx"]["expected"])) if item["type"] == "literal_error" else ""
    return f"{message} (found {show(found)}).{hint}"


def name_keys(at: str, keys: Sequence[str], message: str) -> str:
    """Return the refusal of values of the section `at` that do not fit one another."""
    names = [f"'{at}.{key}'" for key in keys]
    end = "" if message.endswith("?") else "."
    return f"parameter{'s' if keys[1:] else ''} {' and '.join(names)}: {escape(mask(message))}{end}"


def _known_keys(cls: Any, location: list[str]) -> list[str]:
    for part in location:
        hints = typing.get_type_hints(cls) if dataclasses.is_dataclass(cls) else {}
        inner = [c for c in dataclasses_in(hints.get(part))] if part in hints else []
        cls = inner[0] if inner else cls
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def dataclasses_in(hint: Any) -> list[Any]:
    """List the dataclasses that a type contains, at any depth."""
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [found for part in typing.get_args(hint) for found in dataclasses_in(part)]
