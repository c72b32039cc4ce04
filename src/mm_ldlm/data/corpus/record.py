"""The record store: one text per row, in its normalised form, identified by a digest of it.

The id is the same wherever the text came from. The record of a pair also has the second text, and the record of a
caption a reference to what it describes; the id is the digest of both.
"""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from mm_ldlm.core.files import is_flat

RECORD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("meta", pa.string()),
    ]
)
"""Columns of the record store: `id` is `record_id(text, pair, describes)`, `text` is normalised and never empty,
`source` is the name of the source in the parameters, `split` is train, validation or test, `meta` is a JSON object or
null."""
LABEL, PAIR, DESCRIBES = "label", "pair", "describes"
"""Keys of `meta` for the label of a record, for the second text of a pair, and for a reference to what the text
describes, such as an image, with its `digest`."""
PIECE_OF, GROUP = "piece_of", "split_group"
"""Keys of `meta` for the document that a record is a piece of, and for the group of rows that the source names. All
records of one are in the same split."""
META_DEPTH = 64
"""Most levels of lists and mappings in `meta`: Python reads JSON by recursion, whose depth depends on the caller."""
UnicodeForm = Literal["NFC", "NFKC", "none"]

# -- forms of a text ---------------------------------------------------------------------------------------------------


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


def is_storable(text: str) -> bool:
    """Return whether a text contains neither NUL nor a lone surrogate, which no store accepts."""
    try:
        return "\0" not in text and (text.isascii() or bool(text.encode("utf-8")))
    except UnicodeEncodeError:
        return False


# -- identity ----------------------------------------------------------------------------------------------------------


def text_digest(text: str, describes: str | None = None) -> bytes:
    """Return the blake2b digest of a text, 16 bytes; of a description, also of the digest of what it describes.

    No stored text contains NUL, so a description never has the digest of another text or of a pair.
    """
    whole = text if describes is None else f"{text}\0\0{describes}"
    return hashlib.blake2b(whole.encode("utf-8"), digest_size=16).digest()


def record_id(text: str, pair: str | None = None, describes: str | None = None) -> str:
    """Return the id of a record, 32 hexadecimal digits of the `text_digest` of the `whole_text`."""
    return text_digest(whole_text(text, pair), describes).hex()


def whole_text(text: str, pair: str | None) -> str:
    """Join the two texts of a pair by NUL, which no stored text contains; without a second text, return the first."""
    return text if pair is None else f"{text}\0{pair}"


# -- meta --------------------------------------------------------------------------------------------------------------


def label_text(value: Any) -> str | None:
    """Return a label as text: text that is not empty, a whole number, or true or false; None for anything else.

    Tables store whole numbers as floats where a cell is empty.
    """
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return (str(value).strip() or None) if isinstance(value, (str, int)) else None


def meta_text(fields: Mapping[str, Any]) -> str | None:
    """Return `meta` of a record as JSON; None without fields.

    Raises:
        TypeError: a name of a field is not a text.
        ValueError: the fields are nested deeper than `META_DEPTH`.
    """
    if not is_flat(fields, META_DEPTH):
        raise ValueError(f"nested deeper than {META_DEPTH} levels")
    return json.dumps(fields, ensure_ascii=True, default=str) if fields else None


def meta_value(meta: str | None, key: str) -> Any:
    """Read one key of `meta`; None if it is missing."""
    return None if meta is None or f'"{key}"' not in meta else json.loads(meta).get(key)


def group_of(meta: str | None) -> str | None:
    """Return the group of a record, or the document that it is a piece of, by its `meta`; None without one."""
    return meta_value(meta, GROUP) or meta_value(meta, PIECE_OF)


def reference_of(meta: str | None) -> dict[str, Any] | None:
    """Return the reference to what the text of a record describes, by its `meta`; None if it describes nothing."""
    found = meta_value(meta, DESCRIBES)
    return found if isinstance(found, dict) and "digest" in found else None


def described_by(meta: str | None) -> str | None:
    """Return the digest of what the text of a record describes, by its `meta`; None if it describes nothing."""
    found = reference_of(meta)
    return None if found is None else str(found["digest"])
