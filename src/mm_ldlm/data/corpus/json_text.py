"""JSON from outside: a key that occurs twice is refused, because `json` would silently keep the last value."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: It is not JSON, a key occurs twice in one object, or it is nested too deeply to be read.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.80} occurs {names.count(twice)} times in one object")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
"""Made once: `json.loads` with a hook makes a decoder for every text."""
