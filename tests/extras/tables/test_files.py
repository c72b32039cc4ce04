"""Arrow files, Parquet files and saved data sets: all types, bounded cells, and files that end early."""

import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.damage import damaged_bytes
from tests.data.corpus.examples import described, read, reasons, texts
from tests.extras.tables.examples import disk

from mm_ldlm.core import SourceError, UnsafePathError, parse
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.record import meta_text
from mm_ldlm.data.corpus.sources import Opening, Row


def written(
    kind: str, path: Path, columns: dict[str, Any] | pa.Table, compression: str | None = None
) -> dict[str, Any]:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=10, compression=compression)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table, max_chunksize=10)
    return {"kind": "parquet" if kind == "parquet" else "arrow", "path": str(path)}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_a_tensor_column_is_read_as_vectors(tmp_path: Path, kind: str) -> None:
    """A view of an extension type ends the process (pyarrow 25)."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    columns: dict[str, Any] = {"text": ["a", "b", "c", "d"]}
    columns["tensor"] = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    columns["list"] = pa.array(list(values), pa.list_(pa.float32()))
    columns["inside"] = pa.StructArray.from_arrays([columns["tensor"], pa.array(columns["text"])], names=["v", "t"])
    keys = written(kind, tmp_path / "a", columns)
    for name in ("tensor", "list"):
        assert np.array_equal([row.vector for row in read({**keys, "vector_column": name})], values)  # type: ignore[union-attr]
    assert texts(read({**keys, "meta_columns": ["inside", "tensor"]})) == columns["text"]


INDICES = pa.array(["a"]).dictionary_encode()


@pytest.mark.parametrize(
    "odd",
    [
        pa.ExtensionArray.from_storage(pa.opaque(INDICES.type, "x", "y"), INDICES),
        pa.ListArray.from_arrays([0, 1], INDICES),
        pa.array([["a"]], pa.list_view(pa.string())),
        pa.array([["a"]], pa.list_(pa.string_view())),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
    ],
    ids=["extension", "list of a dictionary", "list view", "list of views", "run-end encoded"],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_in_which_one_value_stands_for_many_cells_is_refused_if_it_is_read(
    tmp_path: Path, kind: str, odd: pa.Array
) -> None:
    """Such cells cannot be measured before they are read; an extension type over a dictionary ends the process."""
    if kind == "parquet" and pa.types.is_run_end_encoded(odd.type):
        pytest.skip("Parquet has no such type")
    keys = written(kind, tmp_path / "a", {"text": ["a"], "odd": odd})
    assert texts(read(keys)) == ["a"]
    with pytest.raises(SourceError, match="odd"):
        read({**keys, "meta_columns": ["odd"]})


TYPES: dict[str, tuple[pa.Array, int]] = {
    "large": (pa.array(["a", None], pa.large_string()), 2),
    "view": (pa.array(["a", None], pa.string_view()), 2),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), 2),
    "json": (pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(["a", None])), 2),
    "bytes": (pa.array([b"\xff", b"a"]), 0),
    "not utf-8": (pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"a"]).buffers()), 1),
    "number": (pa.array([1, 2]), 0),
    "list": (pa.array([["a"], ["b"]]), 0),
    "struct": (pa.array([{"a": "b"}, {"a": "c"}]), 0),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), 0),
    "date": (pa.array([2**31 - 1, 1], pa.date32()), 0),
    "zone": (pa.array([1, 2], pa.timestamp("us", "Nowhere/Nothing")), 0),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_every_type_of_column_is_text_or_a_bad_row_and_meta_if_python_can_represent_it(
    tmp_path: Path, name: str, kind: str
) -> None:
    column, good = TYPES[name]
    keys = written(kind, tmp_path / "a", {"text": ["a", "b"], "odd": column})
    found = read({**keys, "columns": ["odd"]})
    assert (len(found), len(texts(found))) == (2, good)
    for key in ("meta_columns", "label_column", "pair_column", "split_column", "vector_column"):
        assert len(read({**keys, key: ["odd"] if key == "meta_columns" else "odd"})) == 2


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("key", ["columns", "meta_columns", "label_column", "pair_column", "split_column"])
@pytest.mark.parametrize("type_", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_every_cell_that_is_read_is_bounded(tmp_path: Path, kind: str, key: str, type_: pa.DataType) -> None:
    cells = pa.array(["train", "x" * 1_500, "train"], type_)
    keys = written(kind, tmp_path / "a", {"text": ["a", "b", "c"], "odd": cells})
    rows = read({**keys, key: ["odd"] if key.endswith("s") else "odd"}, max_row_bytes=1000)
    assert reasons(rows) == ["oversized"]
    assert [row.line for row in rows if isinstance(row, Row)] == [1, 3]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_pitfall_30_a_file_that_ends_early_is_refused(tmp_path: Path, kind: str) -> None:
    keys = written(kind, tmp_path / "a", {"text": [f"text {number}" for number in range(40)]})
    raw = (tmp_path / "a").read_bytes()
    assert len(texts(read(keys))) == 40
    ends = {*range(0, len(raw) - 1, max(8, len(raw) // 50 // 8 * 8)), len(raw) - 8, len(raw) - 1}
    for wrong in (*(raw[:end] for end in ends), *([raw * 2] if kind == "stream" else [])):
        (tmp_path / "a").write_bytes(wrong)
        with pytest.raises(SourceError, match="damaged"):
            read(keys)


def test_offsets_outside_the_buffers_are_refused_and_never_followed(tmp_path: Path) -> None:
    for wrong in ([0, 3, 2**30], [0, 2**31 - 1, 6], [3, 0, 6]):
        table = pa.table({"text": ["abc", "def"]})
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        good, bad = (np.array(each, np.int32).tobytes() for each in ([0, 3, 6], wrong))
        (tmp_path / "a").write_bytes(sink.getvalue().replace(good, bad))
        with pytest.raises(SourceError, match="damaged"):
            read({"kind": "arrow", "path": str(tmp_path / "a")})


def rich_table(count: int) -> pa.Table:
    """A table with a column of each kind of layout: offsets, fixed sizes, bits, indices, nested values."""
    numbers = list(range(count))
    return pa.table(
        {
            "text": [f"text number {n} é" for n in numbers],
            "more": pa.array([None if n % 7 == 0 else f"more {n}" for n in numbers], pa.large_string()),
            "lists": pa.array([[f"w{i}" for i in range(n % 4)] for n in numbers], pa.list_(pa.string())),
            "struct": pa.array([{"a": n, "b": f"b{n}"} for n in numbers]),
            "date": pa.array(numbers, pa.date32()),
            "time": pa.array(numbers, pa.timestamp("us")),
            "word": pa.array([f"k{n % 3}" for n in numbers]).dictionary_encode(),
            "flag": pa.array([n % 3 == 0 for n in numbers]),
            "vector": pa.array([[n, n + 1.0] for n in numbers], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.mark.parametrize("cases", [40, pytest.param(1800, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "compression"),
    [("arrow", None), ("arrow", "zstd"), ("stream", None), ("parquet", None), ("parquet", "snappy")],
)
def test_damage_is_refused_or_loses_no_row(tmp_path: Path, kind: str, compression: str | None, cases: int) -> None:
    """Arrow follows a damaged offset out of its buffers, which would end this process."""
    table = rich_table(60)
    keys = written(kind, tmp_path / "a", table, compression)
    original, refused = (tmp_path / "a").read_bytes(), list[str]()
    keys |= {"meta_columns": table.schema.names[2:]}
    changes = ({"columns": ["text", "more"]}, {"label_column": "word"}, {"columns": ["missing"]})
    for case in range(cases):
        (tmp_path / "a").write_bytes(damaged_bytes(original, random.Random(f"{cases} {case}")))
        for change in changes:
            try:
                rows = read({**keys, **change})
            except SourceError as error:
                refused.append(str(error))
                continue
            assert len(rows) == 60 * len(change.get("columns", ["text"]))
            assert all(meta_text(row.meta) for row in rows if isinstance(row, Row))
    assert 0 < len(refused) < cases * len(changes)
    assert max(map(len, refused)) < 1500


def test_rows_of_a_table_are_numbered_over_its_batches(tmp_path: Path) -> None:
    lines = [f"text {number}" for number in range(2500)]
    for kind in ("parquet", "arrow"):
        rows = read(written(kind, tmp_path / kind, {"text": lines}))
        assert [row.line for row in rows] == list(range(1, 2501))
        assert texts(rows) == lines


def test_the_format_of_a_table_in_columns_follows_from_its_name(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "v": [[1.0]]})
    for kind, name in (("parquet", "a.parquet"), ("arrow", "a.arrow"), ("arrow", "a.feather")):
        written(kind, tmp_path / name, table)
    disk(tmp_path, [{"text": "saved", "v": [1.0]}])
    names = ["a.parquet", "a.arrow", "a.feather", "set"]
    found = read({"kind": "table", "vector_column": "v", "path": [str(tmp_path / name) for name in names]})
    assert texts(found) == ["a", "a", "a", "saved"]
    assert all(row.vector is not None for row in found)  # type: ignore[union-attr]


# -- saved data sets ---------------------------------------------------------------------------------------------------


def saved(folder: Path, **splits: list[str]) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    whole = {name: datasets.Dataset.from_dict({"text": lines}) for name, lines in splits.items()}
    datasets.DatasetDict(whole).save_to_disk(str(folder / "set"), num_shards=dict.fromkeys(splits, 2))
    return {"kind": "disk", "path": str(folder / "set")}


def test_a_data_set_is_loaded_as_the_source_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("datasets.load_dataset", lambda *of, **how: asked.append((of, how)) or [{"text": "a"}])
    given = {"revision": "v1", "streaming": False}
    source = {"kind": "hub", "dataset": "a/set", "subset": "en", "splits": {"train": "test"}, **given}
    assert [(row.line, row.split) for row in read(source) if isinstance(row, Row)] == [(1, "test")]
    assert asked == [(("a/set", "en"), {"split": "train", **given})]
    assert described(source) != described({**source, "revision": "v2"})


def test_a_data_set_that_the_hub_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no/such"):
        read({"kind": "hub", "dataset": "no/such", "splits": {"train": "train"}})
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": broken\n')
    with pytest.raises(SourceError, match="could not be read after"):
        read({"kind": "hub", "dataset": str(tmp_path), "splits": {"train": "hash"}})


@pytest.mark.parametrize(
    ("copy", "splits"),
    {
        "set": ["validation", "validation", "train", "train"],
        "*.jsonl": [None] * 4,
        "fi[l]es": ["validation", "validation", None, "train"],
    }.items(),
)
def test_a_local_copy_is_read_instead_of_the_hub(copy: str, splits: list[str | None], tmp_path: Path) -> None:
    line = '{"text": "%s"}\n'
    saved(tmp_path, train=["c", "d"], test=["a", "b"])
    files = {
        "rows.jsonl": "".join(line % letter for letter in "abcd"), "nothing/README.md": "", "fi[l]es/README.md": "",
        "fi[l]es/wiki.train.raw": "d", "fi[l]es/c.txt": "c", "fi[l]es/valid.jsonl": line % "b",
        "fi[l]es/test/1.jsonl": line % "a",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    source = {"kind": "hub", "dataset": "no/such", "splits": {"train": "train", "test": "validation"}}
    config = parse(IngestionConfig, {"sources": [source], "path": str(tmp_path / copy)}, at="ingestion")
    found = [(row.text, row.split) for row in config.sources[0].rows(Opening(0, 1000)) if isinstance(row, Row)]
    assert found == list(zip("abcd", splits, strict=True))
    with pytest.raises(SourceError, match="save_to_disk"):
        read({**source, "path": str(tmp_path / "nothing")})


def test_splits_of_a_data_set_are_named_and_held_out_ones_are_read_first(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    keys = saved(tmp_path, train=["a", "b"], dev=["c", "d"], other=["e", "f"], test=["g", "h"])
    found = [(row.text, row.split, row.line) for row in read(keys) if isinstance(row, Row)]
    assert found == [
        ("g", "test", 1), ("h", "test", 2), ("c", "validation", 1), ("d", "validation", 2),
        ("e", None, 1), ("f", None, 2), ("a", "train", 1), ("b", "train", 2),
    ]  # fmt: skip
    assert texts(read({**keys, "splits": {"train": "hash", "other": "test"}})) == ["e", "f", "a", "b"]
    with refuses(SourceError, "missing"):
        read({**keys, "splits": {"missing": "train"}})
    (tmp_path / "alone").mkdir()
    alone = read({"kind": "disk", **disk(tmp_path / "alone", [{"text": "alone"}])})
    assert [row.split for row in alone if isinstance(row, Row)] == [None]  # its one split is called train


def test_pitfall_29_names_in_a_data_set_stay_in_its_folder(tmp_path: Path) -> None:
    keys = saved(tmp_path, train=["a", "b"])
    before = described(keys)
    (tmp_path / "set/train/data-00001-of-00002.arrow").write_bytes(b"")
    assert described(keys) != before
    (tmp_path / "set/train/data-00000-of-00002.arrow").rename(tmp_path / "elsewhere.arrow")
    state = tmp_path / "set/train/state.json"
    os.mkfifo(tmp_path / "set/train/pipe.arrow")
    outside = dict.fromkeys(("../../elsewhere.arrow", str(tmp_path / "elsewhere.arrow")), UnsafePathError)
    for name, error in {**outside, "pipe.arrow": SourceError}.items():
        state.write_text(json.dumps({**json.loads(state.read_text()), "_data_files": [{"filename": name}]}))
        with pytest.raises(error, match=Path(name).stem):
            read(keys)
