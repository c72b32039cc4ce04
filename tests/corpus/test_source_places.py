"""Places and sizes in sources: numbers of lines in messages, values at their limits, and files behind links."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig, NearDuplicates
from mm_ldlm.data.corpus.json_text import parse_json
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, files, hugging_face
from mm_ldlm.data.corpus.sources.csv_records import _Lines, _RecordTooLong
from mm_ldlm.data.corpus.sources.fields import rows_of
from mm_ldlm.data.corpus.sources.files import Line
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.extras.starter import source as starter
from mm_ldlm.families.images.decoding import ImageLimits, UnusableImage, digest, meta_of, read_image, reference_of


def opened(*, max_row_bytes: int = 10_000, images: Any = None, **keys: Any) -> Any:
    config = parse(SourceConfig, keys, at="source")
    return open_source(config, seed=0, max_row_bytes=max_row_bytes, images=images)


def png(side: int) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.random.default_rng(side).integers(0, 255, (side, side), np.uint8)).save(sink, "PNG")
    return sink.getvalue()


# -- rows of fields ----------------------------------------------------------------------------------------------------

FIELDS = {"text": "one", "other": "two", "n": 1, "label": "x"}
WHOLE = repr(FIELDS)


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({}, [Row("one", "f", 7, "test")]),
        ({"split": "train"}, [Row("one", "f", 7, "train")]),
        ({"columns": ["other", "text"]}, [Row("two", "f", 7, "test"), Row("one", "f", 7, "test")]),
        ({"meta_columns": ["n", "none"]}, [Row("one", "f", 7, "test", '{"n": 1}')]),
        ({"meta_columns": ["n"], "label_column": "label", "pair_column": "other"},
         [Row("one", "f", 7, "test", '{"n": 1, "label": "x"}', "two")]),
        ({"pair_column": "n"}, [BadRow("f", 7, "wrong_type", "column 'n' contains no second text", WHOLE)]),
        ({"pair_column": "p"}, [BadRow("f", 7, "missing_column", "column 'p' contains no second text", WHOLE)]),
        ({"label_column": "l"},
         [BadRow("f", 7, "missing_column", "no column 'l', which should contain the label", WHOLE)]),
        ({"label_column": "label", "labels": ["a", "b"]},
         [BadRow("f", 7, "unknown_label", "label 'x', expected one of a, b", WHOLE)]),
        ({"split_column": "other"}, [BadRow(
            "f", 7, "wrong_type",
            "column 'other' contains 'two', expected one of train, validation, test, valid, dev, val", WHOLE)]),
        ({"split_column": "s"}, [BadRow(
            "f", 7, "missing_column",
            "column 's' contains None, expected one of train, validation, test, valid, dev, val", WHOLE)]),
        ({"columns": ["n"]}, [BadRow("f", 7, "wrong_type", "column 'n' contains int, expected text", "1")]),
        ({"columns": ["txt"]}, [BadRow(
            "f", 7, "missing_column", "no column 'txt'. Did you mean 'text'? Found text, other, n, label.", WHOLE)]),
        ({"vector_column": "n"},
         [BadRow("f", 7, "wrong_type", "column 'n' contains int 1, expected a list of numbers", "one")]),
        ({"vector_column": "v"},
         [BadRow("f", 7, "missing_column", "no column 'v'; found text, other, n, label", "one")]),
    ],
)  # fmt: skip
def test_the_rows_of_some_fields_as_a_whole(keys: dict[str, Any], rows: list[Row | BadRow]) -> None:
    """`split` is that of the part of a data set, which the rows keep where the source has none."""
    config = parse(SourceConfig, {"kind": "jsonl", "path": "p", **keys}, at="source")
    assert list(rows_of(FIELDS, config=config, file="f", line=7, split="test")) == rows


def test_null_and_empty_values_are_named() -> None:
    for fields, keys, why in (
        ({"text": None}, {}, ("wrong_type", "column 'text' contains null, expected text", "None")),
        ({"text": "t", "v": None}, {"vector_column": "v"}, ("no_vector", "column 'v' is empty", "t")),
        ({"text": "t", "l": " "}, {"label_column": "l"},
         ("no_label", "column 'l' is empty", "{'text': 't', 'l': ' '}")),
        ({}, {}, ("missing_column", "no column 'text'; found nothing.", "{}")),
    ):  # fmt: skip
        config = parse(SourceConfig, {"kind": "jsonl", "path": "p", **keys}, at="source")
        assert list(rows_of(fields, config=config, file="f", line=1)) == [BadRow("f", 1, *why)]


# -- lines and records -------------------------------------------------------------------------------------------------


def test_a_field_of_a_csv_file_may_be_larger_than_python_allows_by_itself(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)
    (tmp_path / "a.csv").write_text("text\n" + "x" * 200_000 + "\nshort\n")
    rows = list(opened(kind="csv", path=str(tmp_path / "a.csv"), max_row_bytes=300_000).rows())
    assert [len(row.text) for row in rows] == [200_000, 5]


def test_a_record_may_be_as_large_as_the_lookahead() -> None:
    lines = _Lines(iter([Line(1, "abc"), Line(2, "d"), Line(3, "e")]), 4)
    assert (next(lines), lines.size) == ("abc\n", 4)
    assert (next(lines), lines.size) == ("d\n", 6)
    with pytest.raises(_RecordTooLong, match="a quoted field has more than 4 characters"):
        next(lines)
    lines.begin()
    assert (next(lines), lines.size, [line.number for line in lines.taken]) == ("e\n", 2, [3])


def test_a_damaged_file_is_named_with_the_last_line_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    rows = opened(kind="text", path=str(path)).rows()
    assert next(rows).text == "one"
    os.truncate(path, 5)
    with pytest.raises(SourceError, match=r"a\.txt: damaged, .* after line 3 \(OSError: 14 bytes were read"):
        list(rows)
    sink, table = io.BytesIO(), pa.table({"text": [f"text {n}" for n in range(40)]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    (tmp_path / "a.arrow").write_bytes(sink.getvalue()[:-8])
    with pytest.raises(SourceError, match=r"a\.arrow: damaged, .* after line 40 \("):
        list(opened(kind="arrow", path=str(tmp_path / "a.arrow")).rows())


@pytest.mark.parametrize(("raw", "shown"), [(b"caf\xe9.txt", "caf\\udce9.txt"), (b"a.txt", "a.txt")])
def test_a_file_is_described_by_a_printable_name_its_size_and_its_digest(
    raw: bytes, shown: str, tmp_path: Path
) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), raw)))
    path.write_bytes(b"abc")
    (tmp_path / "none").write_bytes(b"")
    digest_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    found = files.describe_files([path, tmp_path / "none"])
    assert found[0] == {"name": shown, "bytes": 3, "sha256": digest_of_abc}
    assert (found[1]["name"], found[1]["bytes"]) == ("none", 0)
    json.dumps(found).encode("utf-8")


def test_the_files_of_a_glob_are_sorted_whatever_the_system_lists_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    listed = [str(tmp_path / f"{name}.txt") for name in "bca"]
    monkeypatch.setattr(files.glob, "glob", lambda pattern, recursive: listed)
    assert [row.text for row in opened(kind="text", path=str(tmp_path / "*.txt")).rows()] == ["a", "b", "c"]


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be"])
def test_json_of_any_unicode_encoding_is_read(encoding: str) -> None:
    assert parse_json('{"é": [1, {"a": 2}], "b": {"a": 3}}'.encode(encoding)) == {"é": [1, {"a": 2}], "b": {"a": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "c": 3, "b": 4, "b": 5}', "the key 'b' occurs 3 times in one object"),
        ('[{"x": {"a": 1, "y": 1, "y": 1, "a": 2}}]', "the key 'a' occurs 2 times in one object"),
    ],
)
def test_the_first_key_that_occurs_twice_is_named(text: str, message: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=message):
            parse_json(form)


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file", "tar"])
def test_an_image_above_the_largest_size_is_oversized_and_not_broken(form: str, tmp_path: Path) -> None:
    data = png(30)
    (tmp_path / "a").write_bytes(b"1234567" * (form == "tar") + data + b"more" * (form == "tar"))
    reference = {form: str(tmp_path / "a"), "offset": 7, "bytes": len(data)}
    found = read_image(reference, limits=ImageLimits(max_bytes=len(data)))
    assert found.shape == (30, 30, 1)
    for most in (len(data) - 1, len(data) - 20):
        with pytest.raises(UnusableImage) as error:
            read_image(reference, limits=ImageLimits(max_bytes=most))
        assert (error.value.reason, error.value.detail) == (
            "oversized", f"{most + 1} bytes, at most {most} are decoded"
        )  # fmt: skip


def test_images_of_a_folder_at_their_limits_and_without_a_name(tmp_path: Path) -> None:
    data = png(30)
    (tmp_path / "a.png").write_bytes(data)
    lines = [
        {"text": "t", "image": "a.png", "n": 1},
        {"text": "u", "image": ""},
        {"text": "v", "image": 5},
        {"text": "w"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = {"kind": "image_folder", "path": str(path), "meta_columns": ["n", "image"]}
    first, *others = opened(images=ImageLimits(max_bytes=len(data)), **keys).rows()
    meta = json.loads(first.meta)
    assert (first.text, first.line, meta["n"]) == ("t", 1, 1)
    assert meta["image"] == {"file": str(tmp_path / "a.png"), "digest": first.image}
    assert others == [
        BadRow(
            str(path), line, "missing_column", f"column 'image' contains {value!r}, expected the path of an image", text
        )
        for line, value, text in ((2, "", "u"), (3, 5, "v"), (4, None, "w"))
    ]
    (bad, *_) = opened(images=ImageLimits(max_bytes=len(data) - 1), **keys).rows()
    detail = f"image 'a.png': {len(data)} bytes, at most {len(data) - 1} are decoded"
    assert bad == BadRow(str(path), 1, "oversized", detail, "t")


def test_the_reference_to_an_image_replaces_a_column_of_its_name() -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    meta, key = meta_of({"file": "f"}, pixels, image="a column", n=1)
    assert (json.loads(meta), key) == ({"image": {"file": "f", "digest": key}, "n": 1}, digest(pixels))
    assert reference_of(meta) == {"file": "f", "digest": key}
    for other in ('{"image": "digest"}', '{"image": ["digest"]}', '{"image": {"file": "f"}}', '{"a": "image"}', "{}",
                  '{"image": null}', None):  # fmt: skip
        assert reference_of(other) is None


# -- data sets, the grammar, near duplicates ---------------------------------------------------------------------------


def test_a_saved_data_set_may_be_reached_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": ["one", "two"]}).save_to_disk(str(tmp_path / "set"))
    (tmp_path / "link").symlink_to(tmp_path / "set")
    source = opened(kind="disk", path=str(tmp_path / "link"))
    assert [(row.text, row.file, row.line) for row in source.rows()] == [
        ("one", f"{tmp_path}/link[train]", 1), ("two", f"{tmp_path}/link[train]", 2)
    ]  # fmt: skip

    def batches(path: Path) -> Any:
        yield pa.record_batch({"text": ["a"] * 3})
        yield pa.record_batch({"text": ["a"] * 4})
        raise pa.ArrowInvalid("cut off")

    monkeypatch.setattr(hugging_face, "arrow_batches", lambda path: (None, batches(path)))
    with pytest.raises(SourceError, match=r"data-00000-of-00001\.arrow: damaged, .* after line 7 \(ArrowInvalid: cut"):
        list(source.rows())


def test_the_grammar_is_described_by_the_code_of_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter.resources, "files", lambda package: tmp_path / package)
    folder = tmp_path / "mm_ldlm.extras.starter.corpus"
    folder.mkdir()
    (folder / "a.py").write_text("one")
    before = starter.describe_grammar(3)
    assert before["seed"] == 3
    (folder / "notes.md").write_text("not code")
    assert starter.describe_grammar(3) == before
    for name, code in (("a.py", "two"), ("b.py", "one")):
        (folder / name).write_text(code)
        assert starter.describe_grammar(3)["grammar"] != before["grammar"], name
        before = starter.describe_grammar(3)


def test_the_index_offers_nearly_every_text_at_the_threshold() -> None:
    """Of 64 values, 52 are equal in each pair: more than four fifths. Every candidate is compared afterwards."""
    seen, draw = NearDuplicates(NearDuplicateConfig(threshold=0.8, num_perm=64)), np.random.default_rng(0)
    first = draw.integers(0, 2**32, (150, 64), np.uint64)
    second = first.copy()
    for row in second:
        row[draw.permutation(64)[:12]] += np.uint64(1)

    def sketch(values: Any) -> Any:
        made = seen.signature("any text")
        made.hashvalues = values
        return made

    for values in first:
        seen.add(sketch(values))
    assert sum(seen.seen(sketch(values)) for values in second) >= 141
