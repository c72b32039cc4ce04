"""Damaged files: bytes of any file, and JSON documents in which each value in turn is replaced by wrong ones."""

import copy
import random
import struct
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, True, -1, 2**63, 1.5, 1e308, "", "x", "../x", [], [None], {}, {"a": []})
"""Values of every type, and numbers that no count may have."""


def damaged(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (what was changed, a copy): every value of a document replaced by each wrong one, and every key removed."""
    for path in _paths(document):
        for wrong in WRONG:
            yield f"{path}={wrong!r}", _changed(document, path, wrong)
        if path:
            yield f"{path} removed", _changed(document, path, _REMOVED)


_REMOVED = object()


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield before
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _paths(item, (*before, key))


def _changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(document)
    place = made
    for key in path[:-1]:
        place = place[key]
    if value is _REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


def damaged_bytes(raw: bytes, draw: random.Random) -> bytes:
    """Return the bytes cut, repeated, flipped, zeroed, replaced, or with numbers that are likely offsets and counts."""
    size, place, foreign = len(raw), draw.randrange(len(raw) + 1), draw.randbytes(draw.randrange(1, 40))
    aligned, flipped = place // 8 * 8, bytearray(raw)
    for _ in range(draw.choice((1, 1, 4, 32))):
        flipped[draw.randrange(size)] ^= 1 << draw.randrange(8)
    count = draw.choice((0, 1, -1, 2**31 - 1, -(2**31), draw.randrange(2**31), size, 10**6))
    offset = draw.choice((-1, 2**63 - 1, -(2**63), 2**40, draw.randrange(2**62), size + 8))
    inserted = draw.choice((foreign, b"\xff\x00\"\n,'{", raw))
    block = draw.choice((raw[draw.randrange(size) :][:64], bytes(draw.randrange(1, 200)), bytes(64)))
    return draw.choice((
        bytes(flipped), raw[:place], raw[:aligned], foreign, raw[:place] + inserted + raw[place:],
        raw[:aligned] + struct.pack("<i", count) + raw[aligned + 4 :],
        raw[:aligned] + struct.pack("<q", offset) + raw[aligned + 8 :],
        raw[:aligned] + block + raw[aligned + len(block) :],
    ))  # fmt: skip
