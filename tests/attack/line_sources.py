"""Text, JSONL and CSV files with known rows, and damage to single lines, fields, encodings and archives."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from .damage import HOSTILE, damage_bytes
from .oracle import Written
from .texts import stored, texts

Made = tuple[dict[str, Any], Written]
"""Parameters of the source, and what was written into it."""
ENCODINGS = (
    "latin-1", "cp1252", "utf-16", "utf-32-le", "utf-7", "utf-8-sig", "ascii", "cp037", "shift_jis", "big5",
    "gb18030", "iso2022_jp",
    "hz", "rot13", "base64", "hex", "zip", "bz2", "uu", "quopri", "punycode", "idna", "undefined", "raw_unicode_escape",
    "unicode_escape", "mbcs", "palmos", "nonsense", "", "utf-8\x00", "u" * 500,
)  # fmt: skip
LINE_DAMAGE = (
    "none", "bad_utf8", "nul", "oversized", "empty_lines", "no_last_break", "crlf", "cr", "bom", "utf16", "bytes",
    "encoding", "gz", "gz_cut", "gz_tail", "gz_members", "zst", "zst_cut", "gz_bytes", "not_gz", "repeated_texts",
)  # fmt: skip
JSONL_DAMAGE = (*LINE_DAMAGE, "json_line", "json_line", "json_value", "json_value", "duplicate_key", "columns", "meta")
CSV_DAMAGE = (
    *LINE_DAMAGE, "bad_in_quotes", "oversized_in_quotes", "open_quote", "bad_header", "duplicate_header", "ragged",
    "no_header_row",
    "stray_quote", "columns",
)  # fmt: skip
BAD_LINES = (
    "{broken", "[1]", "3", '"text"', "null", "NaN", "{}", '{"text": 5}', '{"text": null}', '{"text": ["a"]}',
    '{"text": {"a": 1}}',
    "[" * 50_000, '{"text": "\\ud800"}', '{"text": "a\\u0000b"}', '{"text": ""}', '{"a": ' * 30_000, "9" * 10_000,
    '{"text": "x", "n": ' + "9" * 10_000 + "}", '{"text": "y"} {"text": "z"}', '{"text": 1e999}', "\x1b[31m",
    '{"text": "x"},',
)  # fmt: skip
MAX_BYTES = 400


def make_text(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw.randint(1, 30), draw)
    return _finish(damage, draw, folder, [row.encode() for row in rows], rows, {"kind": "text"}, "txt")


def make_jsonl(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw.randint(1, 30), draw)
    fields: list[dict[str, Any]] = [{"text": row, "n": i, "s": "train"} for i, row in enumerate(rows)]
    keys: dict[str, Any] = {"kind": "jsonl"}
    lines = [json.dumps(item, ensure_ascii=draw.random() < 0.5) for item in fields]
    at = draw.randrange(len(lines))
    if damage == "json_line":
        lines.insert(at, draw.choice(BAD_LINES))
    elif damage == "json_value":
        key = draw.choice(("n", "s", "label", "pair"))
        keys |= draw.choice(
            ({"meta_columns": ["n"]}, {"split_column": "s"}, {"label_column": "label"}, {"pair_column": "pair"})
        )
        lines.insert(at, json.dumps({"text": "an odd row", "n": 0, "s": "train", key: draw.choice(HOSTILE)}))
        return _finish(damage, draw, folder, [line.encode() for line in lines], None, keys, "jsonl")
    elif damage == "duplicate_key":
        lines.insert(at, '{"text": "the first value", "text": "the last value"}')
    elif damage == "columns":
        keys["columns"] = draw.choice((["missing"], ["text", "n"], ["text", "text"], [""], ["\ud800"]))
        low, high = len(lines), len(lines) * len(keys["columns"])
        made = _finish(damage, draw, folder, [line.encode() for line in lines], None, keys, "jsonl")
        made[1].low, made[1].high = low, high
        return made
    elif damage == "meta":
        keys["meta_columns"] = draw.choice((["n"], ["n", "n"], ["missing"], ["text"], ["label"], ["pair"], ["n", "s"]))
    elif damage == "repeated_texts":
        lines += lines[: draw.randint(1, len(lines))]
    return _finish(damage, draw, folder, [line.encode() for line in lines], rows, keys, "jsonl")


def make_csv(damage: str, draw: random.Random, folder: Path) -> Made:
    rows = [
        row + ("\nsecond line" if draw.random() < 0.3 else "") for row in texts(draw.randint(2, 30), draw, plain=True)
    ]
    delimiter = draw.choice((",", ";", "\t", "|"))
    keys: dict[str, Any] = {"kind": "csv", "delimiter": delimiter}
    header = ["text", "n"]
    if damage == "duplicate_header":
        header = draw.choice((["text", "text"], ["text", "n", "n"], ["n", "text", "text"]))
    if damage == "columns":
        keys |= draw.choice(({"columns": ["missing"]}, {"columns": ["0"]}, {"header": False, "columns": ["0"]},
        {"delimiter": "\n"},
                             {"delimiter": '"'}, {"delimiter": "\ud800"}, {"delimiter": "\x00"},
                             {"delimiter": " "}))  # fmt: skip
    first_text = header.index("text")
    records = [
        _record([row if place == first_text else f"other {i}" for place in range(len(header))], delimiter)
        for i, row in enumerate(rows)
    ]
    whole: list[str] | None = (
        [] if header.count("text") > 1 else rows
    )  # no choice between two columns of one name is right
    at = draw.randrange(len(records))
    extra: tuple[int, int] | None = None
    quoted = b'"the beginning\n%s\nthe end"' + delimiter.encode() + b"1"
    if damage == "bad_in_quotes":
        records.insert(at, quoted % draw.choice((b"\xff\xfe", b"\x00", b"caf\xe9")))
        extra = (1, 3)
    elif damage == "oversized_in_quotes":
        records.insert(at, quoted % (b"x" * (MAX_BYTES + 50)))
        extra = (1, 3)
    elif damage == "open_quote":
        records.insert(at, b'"never closed' + delimiter.encode() + b"1")
        whole, extra = None, (1, 1 + sum(record.count(b"\n") for record in records))
    elif damage == "ragged":
        records.insert(at, draw.choice((b"a" + delimiter.encode() * 9, b"one field", b'""', delimiter.encode())))
        extra = (1, 1)
    elif damage == "stray_quote":
        records.insert(at, draw.choice((b'a "b" c', b'"a"b', b'"a" ', b'a"')) + delimiter.encode() + b"1")
        whole, extra = None, (1, 3)
    first = delimiter.join(header).encode()
    if damage == "bad_header":
        first = draw.choice((b"te\xffxt,n", b"\x00", b"x" * (MAX_BYTES + 9), b'"text', b"", b"\xef\xbb\xbf\xff"))
        whole, extra = None, (0, len(b"\n".join(records).splitlines()))
    if damage == "no_header_row":
        first = records.pop(0) if len(records) > 1 else first
        whole = None
    if damage == "columns":
        whole, extra = None, (0, 2 + sum(record.count(b"\n") for record in records))
    made = _finish(damage, draw, folder, records, whole, keys, "csv", first=first)
    # The reader may count a broken record by its lines, but never as less than one row.
    if extra is not None:
        inserted = damage not in ("bad_header", "columns")
        low = len(records) - inserted + extra[0]
        made[1].low, made[1].high = low, max(len(records) + extra[1], low)
    return made


def _record(values: list[str], delimiter: str) -> bytes:
    special = (delimiter, '"', "\n", "\r")
    quoted = [
        '"' + value.replace('"', '""') + '"' if any(mark in value for mark in special) else value for value in values
    ]
    return delimiter.join(quoted).encode()


def _finish(
    damage: str, draw: random.Random, folder: Path, lines: list[bytes], whole: list[str] | None, keys: dict[str, Any],
    suffix: str,
    *, first: bytes | None = None,
) -> Made:  # fmt: skip
    """Write the lines with the damage that all kinds of lines share; `first` is a header, which is no row."""
    good = None if whole is None else {stored(text) for text in whole}
    written = Written(len(lines), len(lines), whole=good, required=set(good or ()))
    at = draw.randrange(len(lines) + 1)
    bad = {
        "bad_utf8": b"caf\xe9 \xff",
        "nul": b"a\x00b",
        "oversized": b"x" * draw.choice((MAX_BYTES + 1, 5000, 3_000_000)),
    }
    if damage in bad:
        lines = [*lines[:at], bad[damage], *lines[at:]]
        written.low = written.high = len(lines)
    elif damage == "empty_lines":
        lines = [*lines[:at], *[b""] * draw.randint(1, 5), *lines[at:]]
        written.low = written.high = len(lines)
    if first is not None:
        lines = [first, *lines]
    end = {"crlf": b"\r\n", "cr": b"\r"}.get(damage, b"\n")
    raw = end.join(lines) + (b"" if damage == "no_last_break" else end)
    if damage == "cr":  # a carriage return alone ends no line
        written = Written(0 if first is not None else 1, len(lines), whole=None)
    if damage == "bom":
        raw = b"\xef\xbb\xbf" + raw
    elif damage == "utf16":
        raw = raw.decode().encode("utf-16")
        written = Written(0, 10**6)
    elif damage == "bytes":
        raw = damage_bytes(raw, draw)
        written = Written(raw.count(b"\n") if suffix != "csv" else 0, raw.count(b"\n") + 1)
    elif damage == "encoding":
        keys["encoding"] = draw.choice(ENCODINGS)
        written.whole, written.required = None, set()
        if suffix == "csv":  # the header may be read otherwise
            written.low = 0
    elif damage == "repeated_texts" and suffix == "txt":
        raw += raw
        written.low = written.high = 2 * written.low
    compressed, written = _compress(damage, raw, draw, written)
    if damage == "gz_members" and first is not None:  # the second header is a row
        written = Written(written.low, written.high + 1)
    name = f"source.{suffix}" + {"g": ".gz", "z": ".zst"}.get(damage[0] if damage[:2] in ("gz", "zs") else "", "")
    name = f"source.{suffix}.gz" if damage == "not_gz" else name
    (folder / name).write_bytes(compressed)
    return {"path": str(folder / name), **keys}, written


def _compress(damage: str, raw: bytes, draw: random.Random, written: Written) -> tuple[bytes, Written]:
    pack: Callable[[bytes], bytes] = zstandard.compress if damage.startswith("zst") else gzip.compress
    match damage:
        case "gz" | "zst":
            return pack(raw), written
        case "gz_cut" | "zst_cut":
            packed = pack(raw)
            return packed[: draw.randrange(len(packed))], written
        case "gz_tail":
            return pack(raw) + draw.randbytes(20), written
        case "gz_members":
            return pack(raw) + pack(raw), Written(2 * written.low, 2 * written.high, whole=written.whole)
        case "gz_bytes":  # a checksum guards the content
            return damage_bytes(pack(raw), draw, draw.choice(("flip", "flips", "truncate", "empty", "random"))), written
    return raw, written
