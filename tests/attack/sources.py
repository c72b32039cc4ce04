"""Target: files of lines and of columns with known rows, damaged, ingested and counted."""

import gzip
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from .damage import HOSTILE, SAME_LENGTH, damage_bytes, stored, texts
from .oracle import Written, Wrong, check_rows

Made = tuple[dict[str, Any], Written]
"""Parameters of the source, and what was written into it."""
MAX_BYTES = 400
ENCODINGS = (
    "latin-1", "cp1252", "utf-16", "utf-32-le", "utf-7", "utf-8-sig", "ascii", "cp037", "shift_jis", "iso2022_jp", "hz",
    "rot13", "base64", "zip", "uu", "punycode", "idna", "undefined", "unicode_escape", "mbcs", "nonsense", "",
    "utf-8\x00", "u" * 500,
)  # fmt: skip
BAD_LINES = (
    "{broken", "[1]", "3", "null", "NaN", "{}", '{"text": 5}', '{"text": ["a"]}', "[" * 50_000, '{"text": "\\ud800"}',
    '{"text": "a\\u0000b"}', '{"text": ""}', '{"a": ' * 30_000, "9" * 10_000, '{"text": "x", "n": ' + "9" * 10_000 + "}",
    '{"text": "y"} {"text": "z"}', '{"text": 1e999}', "\x1b[31m", '{"text": "x"},',
)  # fmt: skip
PACKING = ("gz", "gz_cut", "gz_tail", "gz_members", "gz_bytes", "not_gz", "zst", "zst_cut")
LINES = (
    "none", "bad_utf8", "nul", "oversized", "empty_lines", "no_last_break", "crlf", "cr", "bom", "utf16", "bytes",
    "encoding", "repeated", *PACKING,
)  # fmt: skip
COLUMNS = (
    "none", "bytes", "bytes", "truncate", "text_type", "text_type", "nulls", "no_rows", "no_columns", "odd", "odd",
    "extension", "extension",
    "wide_meta", "wrong_kind", "missing_column", "duplicate_column",
)  # fmt: skip
DAMAGE: dict[str, tuple[str, ...]] = {
    "text": LINES,
    "jsonl": (*LINES, "bad_line", "bad_line", "json_value", "json_value"),
    "csv": (
        *LINES,
        "bad_in_quotes",
        "open_quote",
        "bad_header",
        "duplicate_header",
        "ragged",
        "stray_quote",
        "delimiter",
    ),
    "parquet": COLUMNS,
    "arrow": (*COLUMNS, "cut_at_batch", "offsets", "offsets", "dictionary"),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    *[{}] * 10, {"shard_rows": 3}, {"unicode_form": "NFC"}, {"near_duplicates": {}}, {"max_bad_fraction": 0.0},
    {"shard_rows": 1}, {"language_filter": "no_such_module:f"}, {"tokens": "drop"}, {"tokens": "split"},
)  # fmt: skip
FILTERS = {
    "keep": "True", "broken": "1 / 0", "word": "'no'", "number": "float('nan')", "nothing": "None", "one": "1",
    "numpy": "__import__('numpy').array([1, 2])", "endless": "'x' * 10**6",
}  # fmt: skip
NO_PREDICATES = "async def later(text):\n    return False\ndef generator(text):\n    yield False\n"


def prepare() -> Any:
    """Load what the cases need."""
    from mm_ldlm.data.corpus import ingestion  # noqa: F401


def generate(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(list(DAMAGE))
    found: dict[str, Any] = {"kind": kind, "damage": draw.choice(DAMAGE[kind]), "draw": draw.randrange(2**32)}
    if draw.random() < 0.1:
        return {**found, "filter": draw.choice((*FILTERS, "later", "generator"))}
    return {**found, "options": draw.choice(OPTIONS)}


def run(parameters: dict[str, Any], folder: Path, _: Any) -> str:
    kind, damage = parameters["kind"], parameters["damage"]
    maker = {"text": make_text, "jsonl": make_jsonl, "csv": make_csv}.get(kind, make_columns)
    source, written = maker(kind, damage, random.Random(parameters["draw"]), folder)
    options = dict(parameters.get("options", {}))
    if name := parameters.get("filter"):
        code = "".join(f"def {each}(text):\n    return {value}\n" for each, value in FILTERS.items())
        (folder / "filters_of_the_case.py").write_text(code + NO_PREDICATES)
        sys.path.insert(0, str(folder))
        options["language_filter"] = f"filters_of_the_case:{name}"
    ending = ingested(folder, source, written, options)
    if name not in (None, "keep") and written.low:
        raise Wrong("accepted nonsense", f"a filter that is no predicate ({name}) ended in {ending}")
    return ending


def ingested(folder: Path, source: dict[str, Any], written: Written, options: dict[str, Any], side: Any = None) -> str:  # fmt: skip
    """Ingest a source and compare the records with what was written."""
    from mm_ldlm.core import parse
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.ingestion import ingest
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
    from mm_ldlm.data.store import ShardStore

    treatment = options.pop("tokens", None)
    limits = treatment and parse(TokenizerConfig, {"max_length": 8, "too_long": treatment}, at="tokenizer")
    defaults = {"max_bad_fraction": 1.0, "max_row_bytes": MAX_BYTES}
    config = parse(IngestionConfig, {"sources": [source], **defaults, **options}, at="ingestion")
    workspace, quarantine = folder / "records", folder / "quarantine"
    records, refused, report = ingest(
        config, seed=0, workspace=workspace, quarantine=quarantine, tokens=limits, side=side
    )  # fmt: skip
    records.write(workspace)
    refused.write(quarantine)
    accepted = ShardStore.open(workspace, "records").gather("text", slice(None)).to_pylist()
    if limits or "near_duplicates" in options:
        written.required = set()  # near duplicates are dropped, long texts are cut
    check_rows(written, report, list(accepted), len(ShardStore.open(quarantine, "quarantine")))
    return "quarantine" if report["quarantined"] else "success"


# -- lines -------------------------------------------------------------------------------------------------------------


def make_text(kind: str, damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw)
    return _lines(damage, draw, folder / "source.txt", [row.encode() for row in rows], rows, {"kind": "text"})


def make_jsonl(kind: str, damage: str, draw: random.Random, folder: Path) -> Made:
    rows: list[str] | None = texts(draw)
    lines = [json.dumps({"text": row, "n": i, "s": "train"}, ensure_ascii=draw.random() < 0.5)
             for i, row in enumerate(rows or ())]  # fmt: skip
    keys: dict[str, Any] = {"kind": "jsonl"}
    at = draw.randrange(len(lines))
    if damage == "bad_line":
        lines.insert(at, draw.choice(BAD_LINES))
    elif damage == "json_value":
        key, option = draw.choice((("n", "meta_columns"), ("s", "split_column"), ("label", "label_column"), ("pair", "pair_column")))  # fmt: skip
        keys[option] = [key] if option == "meta_columns" else key
        lines.insert(at, json.dumps({"text": "an odd row", "n": 0, "s": "train", key: draw.choice(HOSTILE)}))
        rows = None
    return _lines(damage, draw, folder / "source.jsonl", [line.encode() for line in lines], rows, keys)


def make_csv(kind: str, damage: str, draw: random.Random, folder: Path) -> Made:
    rows = [row + "\nsecond line" * (draw.random() < 0.3) for row in texts(draw, plain=True)]
    mark = draw.choice((",", ";", "\t", "|"))
    end = mark.encode() + b"1"
    records = [(f'"{row}"' if "\n" in row else row).encode() + end for row in rows]
    lines = sum(record.count(b"\n") + 1 for record in records)
    keys: dict[str, Any] = {"kind": "csv", "delimiter": mark}
    header = f"text{mark}n".encode()
    at, good, low, high = draw.randrange(len(records)), len(records), 0, 0
    whole: list[str] | None = rows
    match damage:
        case "bad_in_quotes":
            inner = draw.choice((b"\xff\xfe", b"\x00", b"caf\xe9", b"x" * (MAX_BYTES + 50)))
            records.insert(at, b'"the beginning\n' + inner + b'\nthe end"' + end)
            low, high = 1, 3
        case "open_quote":
            records.insert(at, b'"never closed' + draw.choice((b"", b" x" * 2_000_000)) + end)
            whole, low, high = None, 1 - good, lines
        case "ragged":
            records.insert(at, draw.choice((b"a" + mark.encode() * 9, b"one field", b'""', mark.encode())))
            low = high = 1
        case "stray_quote":
            records.insert(at, draw.choice((b'a "b" c', b'"a"b', b'"a" ', b'a"')) + end)
            whole, low, high = None, 1, lines
        case "bad_header":
            header = draw.choice((b"te\xffxt,n", b"\x00", b"x" * (MAX_BYTES + 9), b'"text', b"", b"\xef\xbb\xbf\xff"))
            whole, low, high = None, -good, lines
        case "duplicate_header":
            header, whole = mark.join(draw.choice((("text", "text"), ("text", "n", "n")))).encode(), None
    source, written = _lines(damage, draw, folder / "source.csv", records, whole, keys, header=header)
    if low or high:
        written.low, written.high = good + low, good + high
    return source, written


def _lines(damage: str, draw: random.Random, path: Path, lines: list[bytes], rows: list[str] | None,
           keys: dict[str, Any], *, header: bytes | None = None) -> Made:  # fmt: skip
    """Write the lines with the damage that all kinds of lines share; `header` is no row."""
    written = Written.of([stored(row) for row in rows or ()])
    written.low = written.high = len(lines)
    if rows is None:
        written.whole = None
    at = draw.randrange(len(lines) + 1)
    odd = {"bad_utf8": [b"caf\xe9 \xff"], "nul": [b"a\x00b"], "empty_lines": [b""] * draw.randint(1, 5),
           "oversized": [b"x" * draw.choice((MAX_BYTES + 1, 5000, 3_000_000))]}.get(damage, [])  # fmt: skip
    lines = [*([header] if header is not None else []), *lines[:at], *odd, *lines[at:]]
    written.low, written.high = written.low + len(odd), written.high + len(odd)
    end = {"crlf": b"\r\n", "cr": b"\r"}.get(damage, b"\n")
    raw = end.join(lines) + (b"" if damage == "no_last_break" else end)
    if damage == "cr":  # a carriage return alone ends no line
        written.unknown(0 if header is not None else 1, len(lines))
    elif damage == "bom":
        raw = b"\xef\xbb\xbf" + raw
    elif damage == "utf16":
        raw = raw.decode("utf-8", "replace").encode("utf-16")
        written.unknown()
    elif damage == "bytes":
        raw = damage_bytes(raw, draw)
        written.unknown(0 if header is not None else raw.count(b"\n"), raw.count(b"\n") + 1)
    elif damage == "encoding":
        keys["encoding"] = draw.choice(ENCODINGS)
        written.unknown(0 if header is not None else written.low, written.high)
    elif damage == "repeated" and header is None:
        raw += raw
        written.low, written.high = 2 * written.low, 2 * written.high
    if damage in PACKING:
        path, raw = path.with_name(f"{path.name}.{'zst' if 'zst' in damage else 'gz'}"), _packed(damage, raw, draw)
    if damage == "gz_members":
        written.low, written.high = 2 * written.low, 2 * written.high + (header is not None)  # which is a row there
        written.whole = written.whole if header is None else None
    path.write_bytes(raw)
    return {"path": str(path), **keys}, written


def _packed(damage: str, raw: bytes, draw: random.Random) -> bytes:
    packed = zstandard.compress(raw) if damage.startswith("zst") else gzip.compress(raw)
    if damage.endswith("cut"):
        return packed[: draw.randrange(len(packed))]
    if damage == "gz_bytes":  # a checksum guards the content
        return damage_bytes(packed, draw, "flip", "truncate", "empty", "random")
    return {"gz_tail": packed + draw.randbytes(20), "gz_members": packed * 2, "not_gz": raw}.get(damage, packed)


# -- columns -----------------------------------------------------------------------------------------------------------


def make_columns(kind: str, damage: str, draw: random.Random, folder: Path) -> Made:
    rows = texts(draw)
    count, path = len(rows), folder / f"source.{kind}"
    written, keys = Written.of([stored(row) for row in rows]), {"kind": kind, "path": str(path)}
    columns: dict[str, pa.Array] = {"text": pa.array(rows), "n": pa.array(range(count))}
    match damage:
        case "text_type":
            columns["text"] = draw.choice(_text_types(rows))
            written.required = set()
        case "nulls":
            kept = [row if draw.random() < 0.5 else None for row in rows]
            columns["text"], written.required = pa.array(kept, pa.string()), {stored(row) for row in kept if row}
        case "odd" | "extension" | "wide_meta":
            made = {"odd": _odd, "extension": _extensions}.get(damage, _wide)
            columns["odd"] = draw.choice(made(count))
            option = draw.choice(("meta_columns", "meta_columns", "label_column", "split_column", "pair_column"))
            keys[option] = ["odd"] if option == "meta_columns" else "odd"  # type: ignore[assignment]
            written.required = set()
            if damage == "wide_meta" and option != "split_column":
                written.forbidden = {stored(rows[0])}  # its cell is larger than max_row_bytes
        case "no_rows" | "no_columns":
            columns = {name: column[:0] for name, column in columns.items()} if damage == "no_rows" else {}
            written = Written(0, 0)
        case "missing_column":
            del columns["text"]
            written.whole, written.required = set(), set()
        case "dictionary":
            indices = pa.array([draw.choice((0, 1, 7, 2**20, -1)) for _ in rows], pa.int32())
            columns = {"text": pa.DictionaryArray.from_arrays(indices, pa.array(["one word", "two words"]), safe=False)}
            written.whole, written.required = None, set()
    names, arrays = list(columns), list(columns.values())
    if damage == "duplicate_column":
        names, arrays = [*names, "text"], [*arrays, pa.array([f"other {i}" for i in range(count)])]
    table = pa.Table.from_arrays(arrays, names=names)
    if damage == "offsets":
        count = _bad_offsets(path, draw)
        return keys, Written(count, count)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=draw.choice((1, 7, 100)), compression=draw.choice(("none", "zstd")))
    else:
        write_arrow(table, path, draw, cut=damage == "cut_at_batch")
    raw = path.read_bytes()
    if damage in ("bytes", "truncate"):
        ways = (*SAME_LENGTH, "insert", "append", "random") if damage == "bytes" else ("truncate", "truncate8", "empty")
        path.write_bytes(damage_bytes(raw, draw, *ways))
        written.whole, written.required = None, set()
    elif damage == "wrong_kind":
        keys["kind"] = draw.choice(("parquet", "arrow", "jsonl", "csv", "text"))
        written.unknown()
    return keys, written


def write_arrow(table: pa.Table, path: Path, draw: random.Random, *, cut: bool = False) -> None:
    sink, ends = io.BytesIO(), [0]
    with (pa.ipc.new_stream if cut or draw.random() < 0.5 else pa.ipc.new_file)(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=draw.choice((1, 5, 100))):
            writer.write_batch(batch)
            ends.append(sink.tell())
    path.write_bytes(sink.getvalue()[: draw.choice(ends[1:] or ends)] if cut else sink.getvalue())


def tensor(vectors: list[list[float]]) -> pa.Array:
    """A column of the type of stored embeddings, an extension type."""
    values = pa.array(vectors, pa.list_(pa.float32(), len(vectors[0])))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [len(vectors[0])]), values)


def _text_types(rows: list[str]) -> list[pa.Array]:
    count = len(rows)
    return [
        pa.array(rows, pa.large_string()), pa.array(rows, pa.string_view()), pa.array(rows).dictionary_encode(),
        pa.array([row.encode() for row in rows]), pa.array(range(count)), pa.array([[row] for row in rows]),
        pa.array([{"text": row} for row in rows]), pa.array([np.nan] * count), pa.nulls(count), tensor([[0.5, 1.0]] * count),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * count, pa.binary(16))),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(rows)),
    ]  # fmt: skip


def _odd(count: int) -> list[pa.Array]:
    """Columns whose values have no plain counterpart in Python or JSON."""
    far = pa.array([2**62] * count, pa.int64())
    return [
        far.cast(pa.timestamp("ms"), safe=False), far.cast(pa.timestamp("ns", "UTC"), safe=False),
        pa.array([2**31 - 1] * count, pa.int32()).cast(pa.date32()), far.cast(pa.date64(), safe=False),
        far.cast(pa.duration("s")), pa.array([np.inf] * count), pa.array([2**64 - 1] * count, pa.uint64()),
        pa.array([b"\xff\x00"] * count), pa.array([[1, None]] * count), pa.array([{"a": {"b": np.nan}}] * count),
        pa.array(["\x00"] * count), pa.array([None] * count, pa.map_(pa.string(), pa.int64())),
        pa.array([0] * count, pa.int64()).cast(pa.timestamp("s", "No/Such_Zone")),
    ]  # fmt: skip


def _wide(count: int) -> list[pa.Array]:
    return [pa.array(["x" * 10_000, *[""] * (count - 1)])]


def _extensions(count: int) -> list[pa.Array]:
    """Columns of extension types, or with them inside, which end the process where they are viewed (pyarrow 25)."""
    one, texts = tensor([[0.5, 1.0]] * count), pa.array(["a"] * count)
    from_storage = pa.ExtensionArray.from_storage
    return [
        one, tensor([[0.5, 1.0], [1.0, 2.0]] * count)[::2], pa.ListArray.from_arrays(range(count + 1), one),
        pa.StructArray.from_arrays([one, texts], ["v", "t"]), pa.MapArray.from_arrays(range(count + 1), texts, one),
        from_storage(pa.bool8(), pa.array([1] * count, pa.int8())), from_storage(pa.json_(), texts),
        from_storage(pa.uuid(), pa.array([bytes(16)] * count, pa.binary(16))),
        *[from_storage(pa.opaque(each.type, "x", "y"), each) for each in (texts, texts.dictionary_encode())],
    ]  # fmt: skip


def _bad_offsets(path: Path, draw: random.Random) -> int:
    """Write an array of strings or lists, then move its offsets outside the data, which pyarrow itself refuses."""
    lengths = [3 + i for i in range(draw.randint(3, 12))]
    kind = draw.choice((pa.string(), pa.binary(), pa.large_string(), pa.list_(pa.string())))
    values = [b"a" * length if kind == pa.binary() else ["a"] * length if pa.types.is_list(kind) else "a" * length
              for length in lengths]  # fmt: skip
    write_arrow(pa.table({"text": pa.array(values, kind)}), path, draw)
    good = np.cumsum([0, *lengths]).astype(np.int64 if kind == pa.large_string() else np.int32)
    bad = good[::-1].copy() if draw.random() < 0.2 else good.copy()
    bad[draw.choice((slice(1, None), -1, len(bad) // 2))] = draw.choice((2**20, 2**30, 2**31 - 1, -(2**20)))
    path.write_bytes(path.read_bytes().replace(good.tobytes(), bad.tobytes(), 1))
    return len(lengths)
