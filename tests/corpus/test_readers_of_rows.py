"""Rows and bad rows of the readers as a whole: generated texts, lines, members of archives, and cells of any type."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig, arrow_files
from mm_ldlm.data.corpus.sources.base import excerpt
from mm_ldlm.data.corpus.sources.config import SPLIT_WORDS
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.extras.starter.corpus import generate_starter_corpus
from mm_ldlm.extras.starter.pairs import longer
from mm_ldlm.families.images.decoding import ImageLimits, decode, digits


def read(*, seed: int = 0, max_row_bytes: int = 5_000, **keys: Any) -> list[Row | BadRow]:
    return list(open_source(parse(SourceConfig, keys, at="source"), seed=seed, max_row_bytes=max_row_bytes).rows())


# -- generated texts ---------------------------------------------------------------------------------------------------


def test_generated_sentences_and_pairs_are_those_of_the_corpus_in_their_order() -> None:
    keys = {"num_train": 40, "num_validation": 4, "num_test": 6}
    sentences = list(generate_starter_corpus(seed=3, **keys))
    assert read(kind="starter", seed=3, **keys) == [
        Row(each.text, "starter", number, each.split, json.dumps({"shape": each.shape}))
        for number, each in enumerate(sentences, start=1)
    ]
    halves = {name: count // 2 for name, count in keys.items()}
    pairs = list(zip(sentences[::2], sentences[1::2], strict=True))
    assert read(kind="starter_pairs", seed=3, **halves) == [
        Row(one.text, "starter_pairs", number, one.split, json.dumps({"label": longer(one.text, two.text)}), two.text)
        for number, (one, two) in enumerate(pairs, start=1)
    ]
    assert {one.split for one, _ in pairs} == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [("a b", "a", "similar"), ("a b c", "a", "first"), ("a", "a b", "similar"), ("a", "a b c", "second"),
     ("a", "b", "similar"), ("aaaaaa", "b c d", "second")],
)  # fmt: skip
def test_texts_that_differ_by_one_word_are_similar(first: str, second: str, answer: str) -> None:
    assert longer(first, second) == answer


# -- lines -------------------------------------------------------------------------------------------------------------


def test_bad_lines_of_jsonl_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('[1, 2]\n{"text": "good"}\n{"text": }\n"a text"\n\n{"a": 1, "a": 2}\n3\n')
    file = str(path)
    assert read(kind="jsonl", path=file) == [
        BadRow(file, 1, "wrong_type", "a JSON list, expected an object", "[1, 2]"),
        Row("good", file, 2),
        BadRow(file, 3, "broken_json", "Expecting value: line 1 column 10 (char 9)", '{"text": }'),
        BadRow(file, 4, "wrong_type", "a JSON str, expected an object", '"a text"'),
        BadRow(file, 5, "broken_json", "Expecting value: line 1 column 1 (char 0)", ""),
        BadRow(file, 6, "broken_json", "the key 'a' occurs 2 times in one object", '{"a": 1, "a": 2}'),
        BadRow(file, 7, "wrong_type", "a JSON int, expected an object", "3"),
    ]


@pytest.mark.parametrize("header", [True, False])
def test_records_of_another_width_as_a_whole(header: bool, tmp_path: Path) -> None:
    """Without a header each record has its own columns, by their numbers."""
    path = tmp_path / "a.csv"
    path.write_text("text;n\none;1\ntwo;2;3\nthree\n")
    keys = {"kind": "csv", "path": str(path), "delimiter": ";", "header": header}
    file = str(path)
    if header:
        assert read(**keys, meta_columns=["n"]) == [
            Row("one", file, 2, meta='{"n": "1"}'),
            BadRow(file, 3, "broken_csv", "3 fields, the header has 2", "two;2;3"),
            BadRow(file, 4, "broken_csv", "1 fields, the header has 2", "three"),
        ]
        return
    assert read(**keys, columns=["0"], meta_columns=["2"]) == [
        Row("text", file, 1, meta="{}"), Row("one", file, 2, meta="{}"), Row("two", file, 3, meta='{"2": "3"}'),
        Row("three", file, 4, meta="{}"),
    ]  # fmt: skip
    assert [getattr(row, "detail", None) for row in read(**keys, columns=["1"])] == [
        None, None, None, "no column '1'; found 0."
    ]  # fmt: skip


def test_an_excerpt_of_bytes_has_as_many_letters_as_that_of_a_text() -> None:
    assert excerpt(("é" * 200).encode()) == "é" * 160 == excerpt("é" * 200)
    assert excerpt(b"\xff" * 200) == "\\xff" * 40
    assert excerpt(("\U0001f600" * 200).encode()) == "\U0001f600" * 160


def test_the_message_of_an_interrupted_data_set_says_where_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def loaded(*_: Any, **__: Any) -> Any:
        yield from ({"text": f"text {number}"} for number in range(3))
        raise ValueError("\n the first line\nthe second line")

    monkeypatch.setattr(datasets, "load_dataset", loaded)
    for more, named in (({}, ""), ({"subset": "v1"}, r" \(v1\)")):
        rows: list[Any] = []
        source = open_source(
            parse(SourceConfig, {"kind": "hub", "name": "mine", "dataset": "o/d", "splits": {"a": "hash"}, **more},
                  at="source"), seed=0, max_row_bytes=99,
        )  # fmt: skip
        with pytest.raises(
            SourceError,
            match=rf"^source 'mine': data set 'o/d'{named}, split 'a' could not be read after 3 rows "
            r"\(ValueError: the first line\)\. Offline",
        ):
            rows.extend(source.rows())


def test_every_split_of_a_saved_data_set_has_its_word(tmp_path: Path) -> None:
    import datasets

    words = (*SPLIT_WORDS, "other")
    datasets.DatasetDict({word: datasets.Dataset.from_dict({"text": [word]}) for word in words}).save_to_disk(
        str(tmp_path / "set")
    )
    rows = read(kind="disk", path=str(tmp_path / "set"))
    assert {row.text: row.split for row in rows if isinstance(row, Row)} == {**SPLIT_WORDS, "other": None}
    assert {row.file for row in rows} == {f"{tmp_path}/set[{word}]" for word in words}


# -- lists of layouts --------------------------------------------------------------------------------------------------


def test_items_of_a_list_that_are_none_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "old"
    (place / "texts/train").mkdir(parents=True)
    for number in (8, 9):
        (place / f"texts/train/{number}.txt").write_text("unlisted")
    items = [{"text": 5}, {"text": "x", "meta": "[1]"}, {"id": "only"}, {"text": "good"}, {"text_path": "../x"},
             {"text_path": "texts/train/1.txt"}]  # fmt: skip
    (place / "train_data.json").write_text(json.dumps(items))
    file = str(place)
    assert read(kind="layout", path=file) == [
        BadRow(file, 1, "wrong_type", "'text' contains 5, expected text"),
        BadRow(file, 2, "wrong_type", "'meta' contains no JSON object (expected a mapping, found list)"),
        BadRow(file, 3, "missing_column", "neither 'text_path' nor 'text'", "only"),
        Row("good", file, 4, "train"),
        BadRow(f"{file}/../x", 1, "unsafe_path", "entry 5 of the train list: the name '../x' leads out of the folder"),
        BadRow(f"{file}/texts/train/1.txt", 1, "missing_file",
               "entry 6 of the train list names a file that does not exist"),
        BadRow(f"{file}/texts/train/8.txt", 7, "unlisted_file", "no list names this file: it is not read"),
        BadRow(f"{file}/texts/train/9.txt", 8, "unlisted_file", "no list names this file: it is not read"),
    ]  # fmt: skip


# -- images and archives -----------------------------------------------------------------------------------------------


def test_the_digits_have_the_whole_range_of_grey() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = digits()
    levels = load_digits().images.astype(np.int64)
    np.testing.assert_array_equal(pixels[..., 0], (levels * 510 + 16) // 32)
    assert (pixels.dtype, int(pixels.max()), set(map(type, labels))) == (np.uint8, 255, {int})
    assert labels[:10] == tuple(range(10))


def test_sixteen_bits_of_grey_are_rounded() -> None:
    levels = [0, 128, 129, 256, 385, 386, 65_406, 65_407, 65_535]
    sink = io.BytesIO()
    Image.fromarray(np.array([levels], np.uint16)).save(sink, "PNG")
    found = decode(sink.getvalue(), limits=ImageLimits())
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 1, 2, 254, 255, 255]
    assert (found.shape, found.dtype) == ((1, 9, 1), np.uint8)


@pytest.mark.parametrize("name", ["a.tar", "a"])
def test_an_archive_that_is_compressed_with_zstd_is_refused_by_its_beginning(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(zstandard.compress(b"\0" * 1024))
    with pytest.raises(SourceError, match=rf"{name}: expected an uncompressed tar, .* found a compressed one"):
        read(kind="webdataset", path=str(tmp_path / name))


@pytest.mark.parametrize("names", [("a.png", "a.gif"), ("a.jpg", "a.png", "a.jpeg"), ()])
def test_a_sample_has_exactly_one_image(names: tuple[str, ...], tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("L", (2, 2)).save(picture, "PNG")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name in (*names, "a.txt"):
            member = tarfile.TarInfo(name)
            member.size = picture.getbuffer().nbytes
            archive.addfile(member, io.BytesIO(picture.getvalue()))
    found = ", ".join([*(name.partition(".")[2] for name in names), "txt"])
    assert read(kind="webdataset", path=str(path)) == [
        BadRow(str(path), 1, "missing_file",
               f"sample 'a': expected one image (png, jpg, jpeg, webp, bmp, gif), found {found}")
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_SPARSE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_costs_its_sample_alone(kind: bytes, tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("L", (2, 2)).save(picture, "PNG")
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data, own in (("a.png", picture.getvalue(), b"0"), ("a.txt", b"first", b"0"), ("b.txt", b"", kind),
                                ("b.png", picture.getvalue(), b"0"), ("c.png", picture.getvalue(), b"0"),
                                ("c.txt", b"third", b"0")):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(data), own, "a.txt" if own in (b"1", b"2") else ""
            archive.addfile(member, io.BytesIO(data))
    first, bad, third = read(kind="webdataset", path=str(path))
    assert [(getattr(row, "text", None), row.line) for row in (first, third)] == [("first", 1), ("third", 3)]
    assert bad == BadRow(str(path), 2, "wrong_type", "sample 'b': member 'b.txt' is not a regular file")


# -- cells of Arrow ----------------------------------------------------------------------------------------------------

BAD = pa.array([b"fine", b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    "column",
    [
        BAD, pa.array([b"fine", b"\xff"], pa.large_binary()).view(pa.large_string()),
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD),
        pa.LargeListArray.from_arrays(pa.array([0, 1, 2], pa.int64()), BAD), pa.FixedSizeListArray.from_arrays(BAD, 1),
        pa.StructArray.from_arrays([BAD, pa.array([1, 2])], names=["a", "b"]),
        pa.StructArray.from_arrays([pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BAD)], names=["a"]),
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pa.StructArray.from_arrays([BAD], names=["a"])),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_texts_that_are_not_utf8_do_not_damage_their_batch(column: pa.Array) -> None:
    batch = pa.record_batch([column], names=["c"])
    assert arrow_files.valid(batch) is batch
    wrong = pa.array(np.array([0, 9, 2], np.int32))
    damaged = pa.ListArray.from_buffers(pa.list_(pa.string()), 2, [None, wrong.buffers()[1]], children=[BAD])
    with pytest.raises(pa.ArrowInvalid):
        arrow_files.valid(pa.record_batch([damaged], names=["c"]))
