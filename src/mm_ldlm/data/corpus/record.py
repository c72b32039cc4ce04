"""The record store: one text per row, identified by a digest of the stored text and of its image, if it has one.

The id is the same wherever the text came from. The record of a pair also has the second text, and its id is that of
both. `normalisation` defines the stored text, `splits` the split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

RECORD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("meta", pa.string()),
    ]
)
"""Columns of the record store: `id` is `record_id(text, pair, image)`, `text` is normalised and never empty, `source`
is the name of the source in the parameters, `split` is train, validation or test, `meta` is a JSON object or null."""
LABEL, PAIR = "label", "pair"
"""Keys of `meta` for the label of a record, and for the second text of a pair."""
DECODED = "decoded_from_tokens"
"""Key of `meta` of a record whose text was decoded from stored tokens: its vector is not that of the text."""
META_DEPTH = 64
"""Most levels of lists and mappings in `meta`: Python reads JSON by recursion, whose depth depends on the caller."""


def text_digest(text: str, image: str | None = None) -> bytes:
    """Return the blake2b digest of a text, 16 bytes; with an image, of the text and the digest of the image.

    No stored text contains NUL, so a text with an image never has the digest of another text or of a pair.
    """
    whole = text if image is None else f"{text}\0\0{image}"
    return hashlib.blake2b(whole.encode("utf-8"), digest_size=16).digest()


def record_id(text: str, pair: str | None = None, image: str | None = None) -> str:
    """Return the id of a stored text, of both texts of a pair, or of a text with its image: 32 hexadecimal digits of
    `text_digest`."""
    return text_digest(whole_text(text, pair), image).hex()


def whole_text(text: str, pair: str | None) -> str:
    """Join the two texts of a pair by NUL, which no stored text contains; without a second text, return the first."""
    return text if pair is None else f"{text}\0{pair}"


def label_text(value: Any) -> str | None:
    """Return a label as text: text that is not empty, a whole number, or true or false; None for anything else."""
    if isinstance(value, bool):
        return json.dumps(value)
    return (str(value).strip() or None) if isinstance(value, (str, int)) else None


def is_storable(text: str) -> bool:
    """Return whether a text contains neither NUL nor a lone surrogate, which no store accepts."""
    try:
        return "\0" not in text and (text.isascii() or bool(text.encode("utf-8")))
    except UnicodeEncodeError:
        return False


def meta_text(fields: Any) -> str:
    """Return `meta` of a record as JSON.

    Raises:
        ValueError: `fields` is no mapping, has keys that are no texts, or is nested deeper than `META_DEPTH`.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected a mapping, found {type(fields).__name__}")
    try:
        text = json.dumps(fields, ensure_ascii=True, default=str)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not representable as JSON: {error}") from None
    if text.count("[") + text.count("{") > META_DEPTH and _depth(fields) > META_DEPTH:
        raise ValueError(f"nested deeper than {META_DEPTH} levels")
    return text


def is_decoded(meta: str | None) -> bool:
    """Return whether the text of a record was decoded from stored tokens, by its `meta`."""
    return meta_value(meta, DECODED) is True


def _depth(value: Any) -> int:
    """Return how deeply lists and mappings are nested, without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (Mapping, list, tuple))]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, Mapping) else item)]
    return depth


def meta_value(meta: str | None, key: str) -> Any:
    """Read one key of `meta`; None if it is missing."""
    return None if meta is None or f'"{key}"' not in meta else json.loads(meta).get(key)
