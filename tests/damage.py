"""Damaged files: bytes of any file, and JSON documents in which each value in turn is replaced by wrong ones."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mm_ldlm.core import MMLDLMError

WRONG: tuple[Any, ...] = (None, True, -1, 2**63, 1.5, 1e308, "", "x", "../x", [], [None], {}, {"a": []})
"""Values of every type, and numbers that no count may have."""


def damaged(document: Any) -> Iterator[Any]:
    """Yield copies of a document: every value in it replaced by each wrong one, and every key removed."""
    yield from WRONG
    if isinstance(document, list) and document:
        yield document[1:]
        yield from ([wrong, *document[1:]] for wrong in damaged(document[0]))
    for key in document if isinstance(document, dict) else ():
        yield {name: value for name, value in document.items() if name != key}
        yield from ({**document, key: wrong} for wrong in damaged(document[key]))


def refused_or_harmless(path: Path, read: Callable[[], Any], *named: Any) -> None:
    """Damage a JSON file: `read` returns the same each time, or its refusal has one of the names."""
    text, expected = path.read_text(), read()
    for wrong in damaged(json.loads(text)):
        path.write_text(json.dumps(wrong))
        try:
            assert read() == expected, wrong
        except MMLDLMError as error:
            assert any(str(name) in str(error) for name in named), (wrong, error)  # noqa: PT017
    path.write_text(text)


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
