"""Every option of a source in every kind that reads it, and the description of every kind, which changes with it."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.data.corpus import ingestion
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.config import _READS
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.families.images.decoding import ImageLimits, decode, digest_of, read_image

ROWS = [
    {"text": "café one", "kind": "a", "other": "naïve", "where": "dev", "n": "5", "image": "0.png"},
    {"text": "two", "kind": "b", "other": "zwei", "where": "Test", "n": "6", "image": "1.png"},
    {"text": "drei é", "kind": "a", "other": "three", "where": "train", "n": "7", "image": "2.png"},
]
TEXTS = [row["text"] for row in ROWS]


def png(number: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((2, 3), 40 * number, np.uint8)).save(sink, "PNG", compress_level=0)
    return sink.getvalue()


def written(form: str, folder: Path, *, rows: Any = ROWS, encoding: str = "utf-8") -> dict[str, Any]:
    """Write the rows as a source of this form; return its keys. A form is a kind, or a kind with a suffix."""
    kind, _, suffix = form.partition(" ")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows"
    match form:
        case "text":
            path.write_bytes("".join(f"{row['text']}\n" for row in rows).encode(encoding))
        case "text file":
            for number, row in enumerate(rows):
                (folder / f"{number}.txt").write_bytes(row["text"].encode(encoding))
            return {"kind": "text", "unit": "file", "path": str(folder / "*.txt")}
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case "arrow":
            table = pa.Table.from_pylist(rows)
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        case "layout":
            (folder / "texts" / "train").mkdir(parents=True)
            for number, row in enumerate(rows):
                (folder / "texts" / "train" / f"{number}.txt").write_text(row["text"], encoding="utf-8")
            return {"kind": "layout", "path": str(folder)}
        case "webdataset":
            with tarfile.open(path, "w") as archive:
                for number, row in enumerate(rows):
                    for name, data in ((f"{number}.png", png(number)), (f"{number}.json", json.dumps(row).encode())):
                        member = tarfile.TarInfo(name)
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
        case _:
            if kind == "image_folder":
                for number, row in enumerate(rows):
                    (folder / str(row["image"])).write_bytes(png(number))
            csv = "csv" in form or "tsv" in suffix.lower()
            path = folder / f"rows.{suffix or ('csv' if csv else 'jsonl')}"
            between = "\t" if "tsv" in suffix.lower() else ","
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            if csv:
                lines = [between.join(ROWS[0]), *(between.join(map(str, row.values())) for row in rows)]
            path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return {"kind": kind, "path": str(path)}


def read(keys: dict[str, Any], *, max_row_bytes: int = 10_000, seed: int = 0) -> list[Row | BadRow]:
    source = open_source(parse(SourceConfig, keys, at="source"), seed=seed, max_row_bytes=max_row_bytes)
    return list(itertools.islice(source.rows(), 100))


def of(name: str, items: list[Row | BadRow]) -> list[Any]:
    assert all(isinstance(item, Row) for item in items), items
    return [getattr(item, name) for item in items]


FORMS = (
    "text", "text file", "jsonl", "csv", "parquet", "arrow", "image_folder", "image_folder csv", "webdataset", "layout",
    "table csv", "table jsonl", "table tsv", "table TSV",
)  # fmt: skip


def reading(key: str, *without: str) -> list[str]:
    """The forms whose kind reads a key; kinds without a form read nothing of files, or belong to another library."""
    kinds = {kind for kind, keys in _READS.items() if key in keys} - {"hub", "disk"} - set(without)
    found = [form for form in FORMS if form.partition(" ")[0] in kinds]
    assert {form.partition(" ")[0] for form in found} == kinds, "a kind needs a form here"
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_texts_in_their_order(form: str, tmp_path: Path) -> None:
    assert of("text", read(written(form, tmp_path))) == TEXTS


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form not in ("text file", "parquet", "arrow", "webdataset", "layout")]
)
def test_a_compressed_file_has_the_rows_of_the_plain_one(form: str, tmp_path: Path) -> None:
    keys = written(form, tmp_path)
    plain, raw = read(keys), Path(keys["path"]).read_bytes()
    for suffix, packed in ((".gz", gzip.compress(raw)), (".zst", zstandard.compress(raw))):
        path = Path(keys["path"] + suffix)
        path.write_bytes(packed)
        found = read({**keys, "path": str(path)})
        assert found == [row._replace(file=str(path)) for row in plain]


@pytest.mark.parametrize("form", reading("split"))
def test_the_split_of_a_source_is_that_of_every_row(form: str, tmp_path: Path) -> None:
    keys = written(form, tmp_path)
    assert of("split", read(keys)) == [None] * 3
    for split in ("train", "validation", "test"):
        assert of("split", read({**keys, "split": split})) == [split] * 3


@pytest.mark.parametrize("form", reading("split_column"))
def test_a_column_with_the_split(form: str, tmp_path: Path) -> None:
    rows = read({**written(form, tmp_path), "split_column": "where"})
    assert of("split", rows) == ["validation", "test", "train"]


@pytest.mark.parametrize("form", reading("encoding"))
def test_the_encoding_is_that_of_the_source(form: str, tmp_path: Path) -> None:
    latin = written(form, tmp_path, encoding="latin-1")
    assert of("text", read({**latin, "encoding": "latin-1"})) == TEXTS
    assert [row.reason for row in read(latin) if isinstance(row, BadRow)] == ["encoding"] * 2


@pytest.mark.parametrize("form", reading("label_column"))
def test_labels_second_texts_and_further_columns(form: str, tmp_path: Path) -> None:
    keys = written(form, tmp_path)
    found = read({**keys, "label_column": "kind", "pair_column": "other", "meta_columns": ["n"]})
    assert of("pair", found) == [row["other"] for row in ROWS]
    metas = [json.loads(meta) for meta in of("meta", found)]
    assert [{name: meta[name] for name in meta if name != "image"} for meta in metas] == [
        {"n": row["n"], "label": row["kind"]} for row in ROWS
    ]
    known = read({**keys, "label_column": "kind", "labels": ["b"]})
    assert [getattr(row, "reason", "kept") for row in known] == ["unknown_label", "kept", "unknown_label"]
    both = read({**keys, "columns": ["text", "other"]})
    assert of("text", both) == [text for row in ROWS for text in (row["text"], row["other"])]


def test_the_columns_of_a_table_of_any_format(tmp_path: Path) -> None:
    for form in ("table csv", "table jsonl", "table tsv", "table TSV"):
        keys = written(form, tmp_path / form.replace(" ", "_"))
        found = read({**keys, "columns": ["other"], "meta_columns": ["n"]})
        assert of("text", found) == [row["other"] for row in ROWS]
        assert [json.loads(meta) for meta in of("meta", found)] == [{"n": row["n"]} for row in ROWS]


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("parquet", "arrow")])
def test_a_row_above_the_largest_size_is_left_out_alone(form: str, tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "text": "x" * 600}, ROWS[2]]
    keys = written(form, tmp_path, rows=rows)
    assert of("text", read(keys)) == [row["text"] for row in rows]
    found = read(keys, max_row_bytes=500)
    assert [getattr(row, "reason", "kept") for row in found] == ["kept", "oversized", "kept"]
    assert [row.text for row in found if isinstance(row, Row)] == [TEXTS[0], TEXTS[2]]


@pytest.mark.parametrize("form", ["image_folder", "image_folder csv", "webdataset"])
def test_a_reference_leads_to_the_image_of_its_row_alone(form: str, tmp_path: Path) -> None:
    limits = ImageLimits()
    for number, row in enumerate(read(written(form, tmp_path))):
        assert isinstance(row, Row)
        reference = json.loads(row.meta or "")["image"]
        assert row.image == digest_of(row.meta) == reference["digest"]
        assert np.array_equal(read_image(reference, limits=limits), decode(png(number), limits=limits))
        if "bytes" in reference:
            raw = Path(reference["tar"]).read_bytes()[reference["offset"] : reference["offset"] + reference["bytes"]]
            assert raw == png(number)


@pytest.mark.parametrize("form", FORMS)
def test_the_description_changes_with_the_content_and_not_with_the_place(form: str, tmp_path: Path) -> None:
    def described(keys: dict[str, Any]) -> str:
        return json.dumps(open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=999).describe())

    keys = written(form, tmp_path / "a")
    before = described(keys)
    if form.partition(" ")[0] != "image_folder":  # images are described by their time
        assert described(written(form, tmp_path / "b")) == before
    longer = written(form, tmp_path / "c", rows=[*ROWS[:2], {**ROWS[2], "text": "drei é vier"}])
    assert described(longer) != before
    if form.startswith("image_folder"):
        image = tmp_path / "a" / "1.png"
        image.write_bytes(png(5))
        os.utime(image, ns=(1, 1))
        assert described(keys) != before, "an image of the same size"


@pytest.mark.parametrize("kind", ["starter", "starter_pairs"])
def test_generated_texts_follow_the_seed_and_the_numbers(kind: str) -> None:
    keys: dict[str, Any] = {"kind": kind, "num_train": 60, "num_validation": 3, "num_test": 4}
    found = read(keys)
    assert read(keys) == found
    assert of("text", read(keys, seed=1)) != of("text", found)
    assert of("split", found) == ["train"] * 60 + ["validation"] * 3 + ["test"] * 4
    assert len(set(of("text", found))) == 67
    config = parse(SourceConfig, keys, at="s")
    descriptions = [json.dumps(open_source(config, seed=seed, max_row_bytes=9).describe()) for seed in (0, 0, 1)]
    assert descriptions[0] == descriptions[1] != descriptions[2]


def test_every_option_of_a_source_is_in_the_fingerprint_of_the_records() -> None:
    """Paths are left out, because the files are described by their digests."""
    others: dict[str, Any] = {
        "kind": "jsonl", "name": "n", "dataset": "d", "subset": "s", "revision": "r", "streaming": False,
        "splits": {"a": "test"}, "tokens": True, "latents": True, "columns": ("c",), "meta_columns": ("m",),
        "label_column": "l", "labels": ("x",), "pair_column": "p", "vector_column": "v", "split": "test",
        "split_column": "w", "unit": "file", "encoding": "latin-1", "delimiter": ";", "header": False,
        "image_column": "i", "max_samples": 5, "weight": 0.5, "num_train": 1, "num_validation": 2, "num_test": 3,
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(SourceConfig)} == {*others, "path", "vectors"}
    plain = IngestionConfig(sources=(SourceConfig(kind="starter"),))

    def mark(**changes: Any) -> str:
        source = SourceConfig(kind="starter")
        for name, value in changes.items():
            object.__setattr__(source, name, value)  # past the check of keys that the kind does not read
        config = IngestionConfig(sources=plain.sources)
        object.__setattr__(config, "sources", (source,))
        return ingestion._fingerprints(config, [], None, None)["parameters"]

    marks = {name: mark(**{name: value}) for name, value in others.items()}
    assert len({mark(), *marks.values()}) == 1 + len(others), marks
    assert mark(path="/x") == mark(vectors="beside") == mark()
