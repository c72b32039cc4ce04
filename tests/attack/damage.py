"""Damage to bytes, JSON values and files, drawn from a generator; used by several targets."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, -(2**31), 2**63, 2**64, 10**30, 1.5, -0.5, 1e308, -1e308, 1e-320,
    "", " ", "x", "0", "-1", "null", "../x", "../../../etc/hostname", "/etc/hostname", "a/b", "a" * 400, "\ud800",
    "é\n\x00",
    [], [None], [1, 2], ["x"], [[]], {}, {"x": 1}, {"kind": "x"}, {"kind": None}, {"": ""},
)  # fmt: skip
"""Values of every JSON type, at and beyond the bounds of common types."""

BYTE_DAMAGE = (
    "flip",
    "flip",
    "flips",
    "truncate",
    "truncate8",
    "empty",
    "zeros",
    "append",
    "insert",
    "random",
    "repeat",
)
FILE_DAMAGE = ("delete", "folder", "link_loop", "link_outside", "fifo", "swap")


def damage_bytes(raw: bytes, draw: random.Random, how: str | None = None) -> bytes:
    """Return other bytes than `raw`, damaged in one way of `BYTE_DAMAGE`."""
    how = how or draw.choice(BYTE_DAMAGE)
    if not raw and how not in ("append", "random"):
        how = "append"
    at = draw.randrange(len(raw)) if raw else 0
    match how:
        case "flip":
            return raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]
        case "flips":
            changed = bytearray(raw)
            for _ in range(draw.choice((2, 5, 40))):
                changed[draw.randrange(len(raw))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            return bytes(changed)
        case "truncate":
            return raw[:at]
        case "truncate8":  # where columnar formats align their parts
            return raw[: at // 8 * 8]
        case "empty":
            return b""
        case "zeros":
            return raw[:at] + bytes(len(raw[at : at + 64])) + raw[at + 64 :]
        case "append":
            return raw + draw.randbytes(draw.choice((1, 8, 300)))
        case "insert":
            return raw[:at] + draw.randbytes(draw.choice((1, 4, 8))) + raw[at:]
        case "random":
            return draw.randbytes(max(len(raw), 16))
        case _:
            return raw + raw


def damage_json(value: Any, draw: random.Random) -> Any:
    """Return a copy of a JSON value with one part removed, replaced by a hostile value, added, or moved."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    if not places or draw.random() < 0.05:
        return draw.choice(HOSTILE)
    parent, key = draw.choice(places)
    how = draw.choice(("replace", "replace", "replace", "delete", "add", "deep", "copy"))
    match how:
        case "delete":
            del parent[key]
        case "add" if isinstance(parent, dict):
            parent[draw.choice(("x", "kind", "", "a b", "path"))] = draw.choice(HOSTILE)
        case "deep":
            parent[key] = _deep(draw.choice((50, 900)))
        case "copy":
            other, name = draw.choice(places)
            parent[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other[name % len(other)])
        case _:
            parent[key] = draw.choice(HOSTILE)
    return changed


def write_json(path: Path, value: Any, draw: random.Random) -> None:
    """Write a value as JSON, sometimes with a duplicate key, nesting beyond any recursion limit, or NaN."""
    text = json.dumps(value)
    match draw.randrange(12):
        case 0:
            text = text.replace(": ", ": NaN, ", 1) if draw.random() < 0.5 else text.replace("{", '{"x": NaN, ', 1)
        case 1:
            text = "[" * 100_000 + text
        case 2:
            text = text.replace("{", '{"x": ' + "9" * 5000 + ", ", 1)
    path.write_text(text, encoding="utf-8")


def damage_file(path: Path, draw: random.Random, how: str | None = None) -> str:
    """Damage one file in place: its bytes, or what is found under its name; return the way."""
    how = how or draw.choice((*BYTE_DAMAGE, *FILE_DAMAGE))
    if how in BYTE_DAMAGE:
        path.write_bytes(damage_bytes(path.read_bytes(), draw, how))
        return how
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    raw = path.read_bytes()
    path.unlink()
    match how:
        case "folder":
            path.mkdir()
        case "link_loop":
            path.symlink_to(path.name)
        case "link_outside":
            path.symlink_to("/etc/hostname")
        case "fifo":
            os.mkfifo(path)
        case "swap" if others:
            shutil.copy(draw.choice(others), path)
        case "swap":
            path.write_bytes(raw[::-1])
    return how


def files_below(folder: Path) -> list[Path]:
    """List regular files, sorted by name, so that a draw from them is reproducible."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
