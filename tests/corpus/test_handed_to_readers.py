"""What is handed on to readers, engines and other libraries: every limit, seed, column and option by its own value."""

from __future__ import annotations

import dataclasses
import gzip
import io
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError, UnsafePathError
from mm_ldlm.data.corpus.sources import Row, SourceConfig, columnar, files
from mm_ldlm.data.corpus.sources.columnar import ColumnarSource
from mm_ldlm.data.corpus.sources.delimited import CsvSource, JsonlSource
from mm_ldlm.data.corpus.sources.hugging_face import DatasetSource
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.sources.table import TableSource
from mm_ldlm.data.corpus.sources.text import TextSource
from mm_ldlm.data.engines.local import LocalEngineConfig
from mm_ldlm.data.store import Manifest, Shard
from mm_ldlm.extras.layout.source import LayoutSource
from mm_ldlm.extras.own_vectors.store import VectorStore, vector_table
from mm_ldlm.extras.starter.corpus import generate, generate_starter_corpus, generate_starter_sts, scenes, sts
from mm_ldlm.extras.starter.pairs import StarterPairsSource
from mm_ldlm.extras.starter.source import StarterSource
from mm_ldlm.families.images.decoding import ImageLimits
from mm_ldlm.families.images.digits import DigitsSource
from mm_ldlm.families.images.image_folder import ImageFolderSource
from mm_ldlm.families.images.webdataset import WebDatasetSource
from stand_ins import refused


def config(**keys: Any) -> SourceConfig:
    return parse(SourceConfig, keys, at="source")


@pytest.mark.parametrize("images", [None, ImageLimits(max_bytes=5, max_pixels=6)])
def test_every_kind_has_its_reader_with_its_own_limits(images: ImageLimits | None) -> None:
    own, tokenizer = images or ImageLimits(), SimpleNamespace()
    for kind, reader in (
        ("text", TextSource), ("jsonl", JsonlSource), ("csv", CsvSource), ("table", TableSource),
        ("parquet", ColumnarSource), ("arrow", ColumnarSource), ("disk", DatasetSource), ("hub", DatasetSource),
        ("starter", StarterSource), ("starter_pairs", StarterPairsSource), ("digits", DigitsSource),
        ("layout", LayoutSource), ("image_folder", ImageFolderSource), ("webdataset", WebDatasetSource),
    ):  # fmt: skip
        keys = {"dataset": "d", "splits": {"a": "hash"}} if kind == "hub" else {"path": "p"}
        made_of = config(kind=kind, **({} if kind in ("starter", "starter_pairs", "digits") else keys))
        found: Any = open_source(made_of, seed=7, max_row_bytes=77, images=images, tokenizer=tokenizer)  # type: ignore[arg-type]
        assert type(found) is reader
        values = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        wanted = {"config": made_of, "seed": 7, "max_row_bytes": 77, "limits": own, "tokenizer": tokenizer}
        assert values == {name: wanted[name] for name in values}


@pytest.mark.parametrize("path", ["a.csv", "a.TSV.gz", "a.jsonl.zst", "a.parquet", "a.feather", "a.txt", "folder"])
def test_the_reader_of_a_table_has_the_keys_of_the_source(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    keys = {"columns": ["c", "d"], "meta_columns": ["m"], "name": "mine"}
    table: Any = open_source(
        config(kind="table", path=[str(tmp_path / path), "b.csv"], **keys), seed=0, max_row_bytes=7
    )
    first, second = table._sources()
    kind = {"a.csv": "csv", "a.TSV.gz": "csv", "a.jsonl.zst": "jsonl", "a.parquet": "parquet", "a.feather": "arrow",
            "folder": "disk"}.get(path)  # fmt: skip
    delimiter = {"a.TSV.gz": {"delimiter": "\t"}}.get(path, {})
    assert second.config == config(kind="csv", path="b.csv", **keys)
    if kind is None:
        assert first.config == config(kind="text", path=str(tmp_path / path), name="mine")
    else:
        assert first.config == config(kind=kind, path=str(tmp_path / path), **keys, **delimiter)
    assert getattr(first, "max_row_bytes", 7) == 7


def test_a_text_file_of_a_table_has_vectors_beside_it_where_the_tables_have_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    np.save(tmp_path / "a.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    keys = {"kind": "table", "path": str(tmp_path / "a.txt")}
    for more, vectors in (({"columns": ["text"], "vector_column": "e"}, [[1, 2], [3, 4]]), ({}, [None, None])):
        rows = open_source(config(**keys, **more), seed=0, max_row_bytes=99).rows()
        found = [row.vector for row in rows if isinstance(row, Row)]
        assert [None if each is None else each.tolist() for each in found] == vectors


def test_only_the_columns_that_are_read_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are where one is missing, so that the message can list the others."""
    pq.write_table(pa.table({"text": ["a"], "n": [1], "o": [2], "p": ["b"]}), tmp_path / "a")
    asked: list[Any] = []
    real = columnar.parquet_batches

    def batches(path: Path, *, rows: int, columns: Any) -> Any:
        asked.append((path, rows, columns))
        return real(path, rows=rows, columns=columns)

    monkeypatch.setattr(columnar, "parquet_batches", batches)
    keys = {"kind": "parquet", "path": str(tmp_path / "a")}
    for more, columns in (({"meta_columns": ["n"], "pair_column": "p"}, ["text", "n", "p"]), ({}, ["text"]),
                          ({"columns": ["none"]}, None), ({"meta_columns": ["none"]}, ["text"])):  # fmt: skip
        list(open_source(config(**keys, **more), seed=0, max_row_bytes=9).rows())
        assert asked.pop() == (tmp_path / "a", 1024, columns)


def test_large_batches_of_an_arrow_file_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = columnar.batch_rows
    monkeypatch.setattr(
        columnar, "batch_rows", lambda batch, **named: sizes.append(batch.num_rows) or real(batch, **named)
    )
    monkeypatch.setattr(columnar, "BATCH_ROWS", 4)
    table = pa.table({"text": [f"t{number}" for number in range(10)], "o": range(10)})
    with pa.ipc.new_file(str(tmp_path / "a"), table.schema) as writer:
        writer.write_table(table)
    rows = open_source(config(kind="arrow", path=str(tmp_path / "a")), seed=0, max_row_bytes=9).rows()
    assert [(row.text, row.line) for row in rows if isinstance(row, Row)] == [(f"t{n}", n + 1) for n in range(10)]
    assert sizes == [4, 4, 2]


def test_a_file_behind_a_link_is_described_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    first, second = files.describe_files([tmp_path / "a", tmp_path / "link"])
    assert second == {**first, "name": "link"}
    assert first["bytes"] == 3


def test_rows_of_a_saved_data_set_are_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name begins alike is another one."""
    for name in ("set", "set-of-another"):
        (tmp_path / name).mkdir()
        with pa.ipc.new_stream(str(tmp_path / name / "a.arrow"), pa.schema([("text", pa.string())])) as writer:
            writer.write_batch(pa.record_batch({"text": ["one"]}))
    source: Any = open_source(config(kind="disk", path=str(tmp_path / "set")), seed=0, max_row_bytes=9)
    source._check_files(SimpleNamespace(cache_files=[{"filename": str(tmp_path / "set/a.arrow")}]), "p")
    for name in (str(tmp_path / "set-of-another/a.arrow"), str(tmp_path / "set/../set-of-another/a.arrow")):
        with pytest.raises(UnsafePathError) as raised:
            source._check_files(SimpleNamespace(cache_files=[{"filename": name}]), "a data set[train]")
        assert raised.value.detail == f"the name {name!a} of a file of a data set[train] leads out of the folder"


def test_the_order_of_the_results_of_an_engine_is_that_of_the_chunks(
    ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates are found in the order of the sources."""
    asked: list[Any] = []

    class Engine:
        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, function: Any, tasks: Any, **options: Any) -> Any:
            asked.append(options)
            return ((number, function(task)) for number, task in enumerate(tasks))

    monkeypatch.setattr(LocalEngineConfig, "started", lambda _: Engine())
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    found = ingest_into(tmp_path / "out", {"kind": "text", "path": str(tmp_path / "a.txt")})
    assert (found.texts, asked) == (["one", "two"], [{"ordered": True}])


def test_vectors_keep_the_order_of_their_records(tmp_path: Path) -> None:
    rows = [np.array([n, -n, 0.5], np.float32) for n in range(4)]
    table = vector_table(list("dcba"), rows, dim=3)
    assert table.to_pylist() == [{"id": name, "vector": row.tolist()} for name, row in zip("dcba", rows, strict=True)]
    assert table.schema == vector_table([], [], dim=3).schema
    store = VectorStore(3, tmp_path)
    assert [VectorStore(dim, tmp_path).most_rows for dim in (1, 3, 2**26, 2**30)] == [2**26, 2**28 // 12, 1, 1]
    shards = [Shard(name=f"part-{n:06d}.arrow", rows=n, bytes=1, sha256="s") for n in (2, 5)]
    records = Manifest(kind="records", rows=9)
    manifest = store.commit(shards, records=records)
    assert manifest == Manifest.read(tmp_path) == Manifest(
        kind="vectors", rows=7, shards=tuple(shards), fingerprints={"records": records.fingerprint},
        meta={"columns": ["id", "vector"], "dim": 3},
    )  # fmt: skip


@pytest.mark.parametrize("suffix", [".gz", ".zst", ""])
def test_compressed_lines_end_with_their_archive(suffix: str, tmp_path: Path) -> None:
    raw = b"one\r\ntwo\n\nfour"
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes({".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}[suffix](raw))
    found = list(files.read_lines(path, encoding="utf-8", max_bytes=9))
    assert found == [(1, "one"), (2, "two"), (3, ""), (4, "four")]
    assert files.read_document(path, encoding="utf-8", max_bytes=99) == (1, raw.decode())
    if suffix:
        path.write_bytes(path.read_bytes()[:-3])
        message = refused(SourceError, lambda: list(files.read_lines(path, encoding="utf-8", max_bytes=9)))
        assert message.startswith(f"{path}: damaged, or not of the type that its name suggests, after line ")


@pytest.mark.parametrize("error", [EOFError, zlib.error, gzip.BadGzipFile, OSError])
def test_whatever_a_file_raises_while_it_is_read_is_told_as_damage(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class File(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            return super().readline(size) or self.read()

        def read(self, size: int | None = -1, /) -> bytes:
            raise error("why")

    monkeypatch.setattr(files, "open_bytes", lambda path: File(b"one\ntwo\n"))
    path = tmp_path / "a.gz"
    for number, make in (
        (2, lambda: list(files.read_lines(path, encoding="utf-8", max_bytes=9))),
        (1, lambda: files.read_document(path, encoding="utf-8", max_bytes=9)),
    ):  # fmt: skip
        assert refused(SourceError, make) == (
            f"{path}: damaged, or not of the type that its name suggests, after line {number} ({error.__name__}: why). "
            "Fetch the file again or take it out of the source's 'path'."
        )


def test_an_error_of_decoding_behind_the_last_byte_names_the_beginning() -> None:
    for start, words in (
        (1, "byte 0x62 at byte 8 of the file is not x: convert the file (iconv -f latin1 -t utf-8) or set the source's "
         "'encoding'"),
        (2, "the bytes from byte 7 of the file are not x ('c' codec can't decode bytes in position 2-2: r): set the "
         "source's 'encoding'"),
    ):  # fmt: skip
        assert files.explain_decoding(UnicodeDecodeError("c", b"ab", start, 3, "r"), "x", 7) == words


# -- the grammar -------------------------------------------------------------------------------------------------------


def test_a_grammar_that_has_no_more_sentences_tells_how_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_ATTEMPTS_PER_SENTENCE", 3)
    monkeypatch.setattr(generate, "SHAPES", {"one": lambda draw: "a b.", "two": lambda draw: "c d."})
    assert refused(SourceError, lambda: list(generate_starter_corpus(seed=0, num_train=3, num_validation=1))) == (
        "the starter grammar has no more train sentences: 3 were asked for, 2 are new and use words of the 2 sentences "
        "before; ask for fewer, or for more training sentences"
    )
    found = generate_starter_corpus(seed=0, num_train=2, num_validation=0, num_test=0)
    assert [(each.text, each.split, each.shape, each.combinations) for each in found] == [
        ("a b.", "train", "one", ()), ("c d.", "train", "two", ())
    ]  # fmt: skip


def test_pairs_of_no_grade_and_scenes_of_no_split_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sts, "_ATTEMPTS_PER_PAIR", 4)
    monkeypatch.setattr(sts, "GRADES", ((5.0, "same", lambda draw: ("a", "a")),))
    assert refused(SourceError, lambda: generate_starter_sts(seed=0, num_pairs=7)) == (
        "no more 'same' pairs: 7 were asked for, 0 are made; ask for fewer"
    )
    monkeypatch.setattr(sts, "GRADES", ((5.0, "one", lambda draw: ("a", "b")), (1.0, "two", lambda draw: ("b", "a"))))
    assert refused(SourceError, lambda: generate_starter_sts(seed=0, num_pairs=7)) == (
        "no more 'two' pairs: 7 were asked for, 1 are made; ask for fewer"
    ), "the order of two sentences makes no other pair"
    draw = scenes.Draw(SimpleNamespace(), lambda name: False)  # type: ignore[arg-type]
    assert refused(SourceError, lambda: draw.until(lambda: ("a", "b"), "|".join)) == (
        "no combination of this split in 20,000 draws (the last one was 'a|b'); give the shape more fillers"
    )
    assert draw.combinations == []
