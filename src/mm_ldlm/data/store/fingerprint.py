"""Fingerprints: short digests of the inputs of an artifact."""

import hashlib
import json
from pathlib import Path
from typing import Any

from mm_ldlm.core import to_dict


def fingerprint(value: Any) -> str:
    """Return the first 32 hexadecimal digits of the sha256 of a value as canonical JSON.

    It has sorted keys, no spaces and no NaN; dataclasses are mappings, and paths are strings. Names of files whose
    bytes are not UTF-8 have lone surrogates, which are encoded as they are.
    """
    text = json.dumps(
        to_dict(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a file, 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.as_posix()
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")
