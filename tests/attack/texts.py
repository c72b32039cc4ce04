"""Texts for generated sources: distinct, in many scripts, with characters that readers treat specially."""

from __future__ import annotations

import random
import unicodedata

WORDS = (
    "cat", "Straße", "второй", "ﬁne", "naïve", "cafe\u0301", "北京", "👩‍👧", "“quoted”", "a,b", "x;y", "tab\there",
    "back\\slash",
    "o'clock", "1e5", "NaN", "null", "-1", "=1+1", "#", "<b>", "{}", "[1]", "\u2028", "\x85", "\x0b", "\x1c",
    "\ufeff", "\u202e",
)  # fmt: skip
PLAIN = ("river", "house", "bird", "baker", "train", "garden", "letter", "stone", "window")


def texts(count: int, draw: random.Random, *, plain: bool = False) -> list[str]:
    """Distinct texts of a few words; no two of them share a comparison form."""
    words = PLAIN if plain else (*PLAIN, *PLAIN, *WORDS)
    return [" ".join([f"text {i}", *(draw.choice(words) for _ in range(draw.randint(1, 6)))]) for i in range(count)]


def stored(text: str) -> str:
    """The form in which a text is stored: NFC, white space collapsed."""
    return " ".join(unicodedata.normalize("NFC", text).split())
