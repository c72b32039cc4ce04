"""Damage to bytes, JSON values and files, and texts for sources, all drawn from a generator."""

import copy
import json
import os
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, -(2**31), 2**63, 2**64, 10**30, 1.5, -0.5, 1e308, -1e308, 1e-320,
    "", " ", "x", "0", "-1", "null", "../x", "../../../etc/hostname", "/etc/hostname", "a/b", "a" * 400, "\ud800",
    "é\n\x00",
    [], [None], [1, 2], ["x"], [[]], {}, {"x": 1}, {"kind": "x"}, {"kind": None}, {"": ""},
)  # fmt: skip
"""Values of every JSON type, at and beyond the bounds of common types"""
BYTES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "flip": lambda raw, at, draw: raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :],
    "overwrite": lambda raw, at, draw: raw[:at] + draw.randbytes(len(raw[at : at + 8])) + raw[at + 8 :],
    "zeros": lambda raw, at, draw: raw[:at] + bytes(len(raw[at : at + 64])) + raw[at + 64 :],
    "truncate": lambda raw, at, draw: raw[:at],
    "truncate8": lambda raw, at, draw: raw[: at // 8 * 8],  # where columnar formats align their parts
    "empty": lambda raw, at, draw: b"",
    "append": lambda raw, at, draw: raw + draw.randbytes(draw.choice((1, 8, 300))),
    "insert": lambda raw, at, draw: raw[:at] + draw.randbytes(draw.choice((1, 4, 8))) + raw[at:],
    "random": lambda raw, at, draw: draw.randbytes(max(len(raw), 16)),
    "repeat": lambda raw, at, draw: raw + raw,
}
SAME_LENGTH = ("flip", "overwrite", "zeros")
PLACES = ("delete", "folder", "link_loop", "link_outside", "fifo", "swap")
"""What is found under the name of a file instead of it"""


def damage_bytes(raw: bytes, draw: random.Random, *ways: str) -> bytes:
    """Return other bytes than `raw`, damaged in one of these ways; by default any of `BYTES`."""
    way = draw.choice(ways or tuple(BYTES)) if raw else "append"
    return BYTES[way](raw, draw.randrange(len(raw)) if raw else 0, draw)


def damage_file(path: Path, draw: random.Random, *ways: str) -> str:
    """Damage one file in place: its bytes, or what is found under its name; return the way."""
    way = draw.choice(ways or (*BYTES, *PLACES))
    raw = path.read_bytes()
    if way in BYTES:
        path.write_bytes(damage_bytes(raw, draw, way))
        return way
    others = [other for other in files_below(path.parent) if other.parent == path.parent and other != path]
    path.unlink()
    match way:
        case "folder":
            path.mkdir()
        case "link_loop":
            path.symlink_to(path.name)
        case "link_outside":
            path.symlink_to("/etc/hostname")
        case "fifo":
            os.mkfifo(path)
        case "swap":
            path.write_bytes(draw.choice(others).read_bytes() if others else raw[::-1])
    return way


def damage_json(value: Any, draw: random.Random) -> Any:
    """Return a copy of a JSON value with one part removed, replaced by a hostile value, added, or moved."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    if not places or draw.random() < 0.05:
        return draw.choice(HOSTILE)
    parent, key = draw.choice(places)
    match draw.choice(("replace", "replace", "replace", "delete", "add", "deep", "copy")):
        case "delete":
            del parent[key]
        case "add" if isinstance(parent, dict):
            parent[draw.choice(("x", "kind", "", "a b", "path"))] = draw.choice(HOSTILE)
        case "deep":
            parent[key] = json.loads("[" * (depth := draw.choice((50, 900))) + "]" * depth)
        case "copy":
            other, name = draw.choice(places)
            parent[key] = copy.deepcopy(other[name])
        case _:
            parent[key] = draw.choice(HOSTILE)
    return changed


def damage_document(path: Path, draw: random.Random) -> None:
    """Damage a JSON file: a value, or a duplicate key, nesting beyond any recursion limit, or NaN."""
    text = json.dumps(damage_json(json.loads(path.read_text()), draw))
    match draw.randrange(12):
        case 0:
            text = text.replace(": ", ": NaN, ", 1) if draw.random() < 0.5 else text.replace("{", '{"x": NaN, ', 1)
        case 1:
            text = "[" * 100_000 + text
        case 2:
            text = text.replace("{", '{"x": ' + "9" * 5000 + ", ", 1)
    path.write_text(text, encoding="utf-8")


def files_below(folder: Path, suffix: str = "") -> list[Path]:
    """List regular files, sorted by name, so that a draw from them is reproducible."""
    found = (path for path in folder.rglob(f"*{suffix}") if path.is_file() and not path.is_symlink())
    return sorted(found)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


# -- texts -------------------------------------------------------------------------------------------------------------

WORDS = (
    "cat", "Straße", "второй", "ﬁne", "naïve", "cafe\u0301", "北京", "👩‍👧", "“quoted”", "a,b", "x;y", "tab\there",
    "back\\slash",
    "o'clock", "1e5", "NaN", "null", "-1", "=1+1", "#", "<b>", "{}", "[1]", "\u2028", "\x85", "\x0b", "\x1c",
    "\ufeff", "\u202e",
)  # fmt: skip
PLAIN = ("river", "house", "bird", "baker", "train", "garden", "letter", "stone", "window")


def texts(draw: random.Random, *, fewest: int = 2, most: int = 30, plain: bool = False) -> list[str]:
    """Distinct texts of a few words in many scripts, with characters that readers treat specially."""
    words = PLAIN if plain else (*PLAIN, *PLAIN, *WORDS)
    count = draw.randint(fewest, most)
    return [" ".join([f"text {i}", *(draw.choice(words) for _ in range(draw.randint(1, 6)))]) for i in range(count)]


def stored(text: str) -> str:
    """The form in which a text is stored: NFC, white space collapsed."""
    return " ".join(unicodedata.normalize("NFC", text).split())
