"""Text normalisation: the form in which a text is stored, and the form in which two texts are compared."""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Literal

UnicodeForm = Literal["NFC", "NFKC", "none"]


def normalise(text: str, form: UnicodeForm = "NFC", *, collapse_whitespace: bool = True) -> str:
    """Normalise a text for storage: Unicode form, no outer white space, inner runs of it collapsed. Idempotent."""
    if form != "none" and not text.isascii():
        text = unicodedata.normalize(form, text)
    return " ".join(text.split()) if collapse_whitespace else text.strip()


def comparison_form(text: str) -> str:
    """Return the form that two texts share when they count as the same text for splits and leakage.

    The form is compatibility-normalised (NFKC) and casefolded, with collapsed white space.
    """
    if text.isascii():
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(folded.split())


def comparison_digest(text: str, *, key: bytes) -> bytes:
    """Return the keyed blake2b digest of the comparison form, 16 bytes; the first 8 decide the split."""
    return hashlib.blake2b(comparison_form(text).encode("utf-8"), digest_size=16, key=key).digest()
