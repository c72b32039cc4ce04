"""The parameters of `conf/base`, for tests that compare them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml


@functools.cache
def base() -> dict[str, Any]:
    """The parameters of `conf/base`, all files together."""
    found: dict[str, Any] = {}
    for file in sorted((Path(__file__).parents[1] / "conf" / "base" / "parameters").glob("*.yml")):
        found |= yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return found
