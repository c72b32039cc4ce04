"""Files of sources that are damaged, absurd or of another form: each is refused, or costs one row, by its name."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, arrow_files, files
from mm_ldlm.data.corpus.sources.base import excerpt
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.extras.own_vectors.source import column_vectors
from mm_ldlm.families.images import webdataset
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, read_image


def read(*, max_row_bytes: int = 5_000, images: Any = None, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, keys, at="source")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, images=images).rows())


def faults(rows: list[Row | BadRow]) -> list[tuple[str, str] | None]:
    return [None if isinstance(row, Row) else (row.reason, row.detail) for row in rows]


def png(side: int = 3) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side), np.uint8)).save(sink, "PNG")
    return sink.getvalue()


# -- vectors -----------------------------------------------------------------------------------------------------------


def test_a_cell_without_a_vector_costs_its_row_alone(tmp_path: Path) -> None:
    cells = {
        "good": [1, 2.5],
        "bool": [True, 2.0],
        "null": [None, 1.0],
        "text": "[1, x]",
        "deep": [[1.0]],
        "big": [10**400],
    }
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": name, "e": cell}) + "\n" for name, cell in cells.items())
                    + '{"text": "none"}\n')  # fmt: skip
    rows = read(kind="jsonl", path=str(path), vector_column="e")
    assert isinstance(rows[0], Row)
    assert (rows[0].text, np.asarray(rows[0].vector).tolist()) == ("good", [1, 2.5])
    assert faults(rows)[1:] == [
        ("wrong_type", "column 'e' contains a list with bool True, expected a list of numbers"),
        ("wrong_type", "column 'e' contains a list with null, expected a list of numbers"),
        ("wrong_type", "column 'e' contains the text '[1, x]', in which not every item is a number"),
        ("wrong_type", "column 'e' contains a list with list [1.0], expected a list of numbers"),
        ("wrong_type", "column 'e' contains a list with a whole number beyond float64, expected a list of numbers"),
        ("missing_column", "no column 'e'; found text"),
    ]


@pytest.mark.parametrize("size", [-1, 2])
def test_a_null_among_the_numbers_of_a_column_costs_its_row_alone(tmp_path: Path, size: int) -> None:
    column = pa.array([[1, 2], [3, None], None, [5, 6]], pa.list_(pa.float32(), size))
    table = pa.table({"text": list("abcd"), "e": column})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    rows = read(kind="arrow", path=str(tmp_path / "a.arrow"), vector_column="e")
    assert [fault and fault[0] for fault in faults(rows)] == [None, "wrong_type", "no_vector", None]
    assert [np.asarray(row.vector).tolist() for row in rows if isinstance(row, Row)] == [[1, 2], [5, 6]]


def test_columns_of_vectors_are_lists_of_numbers_of_any_arrow_type() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6.0).reshape(3, 2))
    found = column_vectors(tensors.slice(1))
    assert found is not None
    assert [row.tolist() for row in found] == [[2, 3], [4, 5]]
    for other in (pa.array(["[1]"]), pa.array([["a"]]), pa.array([[[1.0]]]), pa.array([1.0])):
        assert column_vectors(other) is None


def test_texts_that_are_not_utf8_cost_their_rows_alone_in_every_arrow_type(tmp_path: Path) -> None:
    raw = pa.array([b"one", b"\xff", b"three"], pa.large_binary()).view(pa.large_string())
    inner = pa.array([b"a", b"b", b"\xfe"]).view(pa.string())
    struct = pa.StructArray.from_arrays([inner], names=["in"])
    table = pa.table({"text": raw, "e": inner, "s": struct, "u": pa.UnionArray.from_dense(
        pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [pa.array([1, 2, 3])])})  # fmt: skip
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    keys = {"kind": "arrow", "path": str(tmp_path / "a.arrow")}
    assert [fault and fault[0] for fault in faults(read(**keys, meta_columns=["u"]))] == [None, "encoding", None]
    found = faults(read(**keys, meta_columns=["s"]))
    assert found[1:] == [
        ("encoding", "column 'text' has the type text, but its bytes are not valid UTF-8"),
        ("wrong_type", "column 's' contains a value that cannot be read: a struct<in: string> with bytes that are not "
         "valid UTF-8"),
    ]  # fmt: skip
    assert faults(read(**keys, vector_column="e"))[2] == (
        "wrong_type", "column 'e' cannot be read: its bytes are not valid UTF-8"
    )  # fmt: skip


# -- containers --------------------------------------------------------------------------------------------------------


def test_a_footer_that_lists_fewer_batches_than_the_file_has_is_refused(tmp_path: Path) -> None:
    parts = []
    for batches in (1, 2):
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, pa.schema([("text", pa.string())])) as writer:
            for number in range(batches):
                writer.write_batch(pa.record_batch({"text": [f"text {number}"]}))
        data = sink.getvalue()
        footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
        parts.append((data[:footer], data[footer:]))
    (tmp_path / "a").write_bytes(parts[1][0] + parts[0][1])
    with pytest.raises(SourceError, match="the footer lists 1 record batches, the file contains 2"):
        read(kind="arrow", path=str(tmp_path / "a"))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("last", [0, -1, 2**32 - 1, 2**63 - 1])
def test_a_stream_without_its_end_marker_is_refused_whatever_its_last_bytes_are(
    last: int, legacy: bool, tmp_path: Path
) -> None:
    """The last number is stored as the bytes of the marker, as those of earlier versions, or as others."""
    sink, path = io.BytesIO(), tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string()), ("n", pa.int64())]), options=options) as writer:
        for number in (7, last):
            writer.write_batch(pa.record_batch({"text": ["a text"], "n": [number]}))
        end = sink.tell()
    whole = sink.getvalue()
    assert len(whole) - end == (4 if legacy else 8)
    path.write_bytes(whole)
    assert [row.text for row in read(kind="arrow", path=str(path)) if isinstance(row, Row)] == ["a text"] * 2
    for cut in range(end, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(SourceError, match=r"a\.arrow: damaged"):
            read(kind="arrow", path=str(path))
    path.write_bytes(whole + b"\0" * 8)
    with pytest.raises(SourceError, match=r"8 bytes follow the end of the stream, which has 2 rows"):
        read(kind="arrow", path=str(path))


@pytest.mark.parametrize(("promised", "groups", "read_rows"), [(3, 2, 2), (1, 2, 2), (2, 2, 1), (2, 2, 3)])
def test_a_parquet_file_with_other_rows_than_its_footer_promises_is_refused(
    promised: int, groups: int, read_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class File:
        metadata = SimpleNamespace(
            num_rows=promised, num_row_groups=1, row_group=lambda n: SimpleNamespace(num_rows=groups)
        )

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> File:
            return self

        def __exit__(self, *_: object) -> None: ...
        def iter_batches(self, *_: Any, **__: Any) -> Any:
            yield pa.record_batch({"text": ["a"] * read_rows})

    monkeypatch.setattr(arrow_files.pq, "ParquetFile", File)
    with pytest.raises(pa.ArrowInvalid, match=f"the footer promises {promised if promised != groups else groups} rows"):
        list(arrow_files.parquet_batches(Path("a"), rows=9, columns=None))


def test_members_of_a_tar_are_named_in_their_faults(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    large, small = png(40), png()
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in (
            ("a/0.png", small), ("a/0.txt", b"first"), ("b/0.png", small), ("b/0.TXT", b"second"),
            ("b/1.png", large), ("b/1.txt", b"large"), ("b/2.png", small), ("b/2.json", b'{"text": "x"}'),
            ("b/2.txt", b"y"), ("b/3.png", small), ("b/3.txt", b"z" * 400),
            ("b/4.png", png(20)), ("b/4.txt", b"medium"),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    rows = read(kind="webdataset", path=str(path), images=ImageLimits(max_bytes=len(large) - 1), max_row_bytes=300)
    assert [row.text for row in rows if isinstance(row, Row)] == ["first", "second", "medium"]
    assert 300 < len(png(20)) < len(large), "the limits of texts and images are two"
    assert faults(rows)[2:5] == [
        ("oversized", f"sample 'b/1': {len(large)} bytes, at most {len(large) - 1} are decoded"),
        ("wrong_type", "sample 'b/2': both .json and .txt contain text"),
        ("oversized", "sample 'b/3': .txt has 400 bytes, at most 300 are read"),
    ]
    cut = tarfile.TarInfo("b/1.png")
    cut.offset_data, cut.size = os.path.getsize(path) - 5, 9
    with pytest.raises(UnusableImage, match=r"'b/1\.png' has 5 of its 9 bytes"):
        webdataset._read(path, cut)


def test_a_document_whose_archive_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a text " * 99)[:-9])
    with pytest.raises(SourceError, match=r"a\.txt\.gz: damaged"):
        read(kind="text", path=str(tmp_path / "a.txt.gz"), unit="file")


def test_files_that_cannot_be_opened_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")

    def refused(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "file_sha256", refused)
        with pytest.raises(
            SourceError, match=r"a\.txt: cannot be read \(Permission denied\)\. Correct the permissions"
        ):
            files.describe_files([tmp_path / "a.txt"])
    with pytest.raises(UnusableImage, match=r"none\.png: No such file") as error:
        read_image({"file": str(tmp_path / "none.png")}, limits=ImageLimits())
    assert error.value.reason == "missing_file"
    assert files.explain_decoding(UnicodeError("odd"), "punycode", 7) == (
        "the bytes from byte 7 of the file are not punycode (odd): set the source's 'encoding'"
    )
    assert excerpt(10**5000).startswith("int (Exceeds the limit")
    assert excerpt("a\0b\ud800") == "a\\x00b\\ud800", "every store and terminal accepts it"


def test_a_folder_that_is_no_saved_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a data set written by save_to_disk, or is damaged"):
        read(kind="disk", path=str(tmp_path))
