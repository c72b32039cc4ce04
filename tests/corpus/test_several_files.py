"""Sources of several files and folders: each row has what lies beside it, and each file its own beginning and end."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig
from mm_ldlm.data.corpus.tokens import build_tokenizer
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.extras.own_vectors.source import beside
from mm_ldlm.families.images.decoding import ImageLimits, read_image


def read(*, tokenizer: TextTokenizer | None = None, max_row_bytes: int = 10_000, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, keys, at="source")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, tokenizer=tokenizer).rows())


def png(level: int, kind: str = "PNG") -> bytes:
    sink = io.BytesIO()
    Image.fromarray(np.full((2, 3), level, np.uint8)).save(sink, kind)
    return sink.getvalue()


def level_of(row: Row | BadRow) -> int:
    assert isinstance(row, Row), row
    return int(read_image(json.loads(row.meta or "{}")["image"], limits=ImageLimits())[0, 0, 0])


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_image_is_that_of_the_folder_of_its_captions(form: str, tmp_path: Path) -> None:
    """Two folders have images of the same name."""
    for number, folder in enumerate(("one", "two")):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "0.png").write_bytes(png(50 + 100 * number))
        text = '{"image": "deep/0.png", "text": "a"}\n' if form == "jsonl" else "image,text\ndeep/0.png,a\n"
        (tmp_path / folder / f"captions.{form}").write_text(text)
    rows = read(kind="image_folder", path=str(tmp_path / "*" / f"captions.{form}"))
    assert [level_of(row) for row in rows] == [50, 150]
    assert [(Path(row.file).parent.name, row.line) for row in rows] == [("one", 1 + (form == "csv")),
                                                                       ("two", 1 + (form == "csv"))]  # fmt: skip
    (tmp_path / "two" / "deep" / "0.png").unlink()
    first, second = read(kind="image_folder", path=str(tmp_path / "*" / f"captions.{form}"))
    assert level_of(first) == 50
    assert isinstance(second, BadRow)
    assert (second.reason, second.detail) == ("missing_file", "image '0.png' does not exist")


def tar_of(path: Path, *members: tuple[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_members_of_other_kinds_are_not_read_and_every_tar_has_its_own_samples(tmp_path: Path) -> None:
    """A mask is no second image; a key that ends one tar and begins the next is two samples."""
    tar_of(
        tmp_path / "0.tar", ("x/a.txt", b"first"), ("x/a.JPEG", png(100, "JPEG")), ("x/a.seg.png", png(1)),
        ("x/a.cls", b"\xff\x00"), ("y/a.webp", png(60)), ("y/a.txt", b"second"), ("k.gif", png(30, "GIF")),
        ("k.txt", b"third"),
    )  # fmt: skip
    tar_of(tmp_path / "1.tar", ("k.bmp", png(40, "BMP")), ("k.txt", b"fourth"), ("l.seg.png", png(1)), ("l.txt", b"l"))
    rows = read(kind="webdataset", path=[str(tmp_path / "0.tar"), str(tmp_path / "1.tar")])
    found = [(row.text, row.line, Path(row.file).name) for row in rows if isinstance(row, Row)]
    assert found == [("first", 1, "0.tar"), ("second", 2, "0.tar"), ("third", 3, "0.tar"), ("fourth", 1, "1.tar")]
    assert [level_of(row) for row in rows[:4]] == pytest.approx([100, 60, 30, 40], abs=1)
    (bad,) = rows[4:]
    assert isinstance(bad, BadRow)
    assert (bad.line, bad.reason) == (2, "missing_file")
    assert bad.detail.startswith("sample 'l': expected one image (png, jpg,")
    assert bad.detail.endswith("found seg.png, txt")


# -- texts and vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "vectors"),
    [("a/t.txt", "a/t.npy"), ("a/t.txt.gz", "a/t.npy"), ("a/t.x.zst", "a/t.npy"), ("a/t", "a/t.npy"),
     ("a.b/t.1.txt", "a.b/t.1.npy"), ("a/t.gz", "a/t.npy")],
)  # fmt: skip
def test_vectors_lie_beside_their_texts(texts: str, vectors: str) -> None:
    assert beside(Path(texts)) == Path(vectors)


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("mark", [b"", MARK])
@pytest.mark.parametrize(
    ("bad", "words"), [(b"\xff", "byte 0xff at byte {} of the file"), (b"\0", "NUL byte at byte {} of the file")]
)
def test_the_place_of_a_bad_byte_is_that_in_the_file(bad: bytes, words: str, mark: bytes, tmp_path: Path) -> None:
    """The byte order mark of UTF-8 is no part of the first text, but it is part of the file."""
    path, first = tmp_path / "a.txt", len(mark)

    def details(content: bytes, unit: str) -> list[tuple[int, str]]:
        path.write_bytes(mark + content)
        rows = read(kind="text", path=str(path), unit=unit)
        return [(row.line, row.detail.partition(":")[0].partition(" is not")[0])
                for row in rows if isinstance(row, BadRow)]  # fmt: skip

    lines = details(b"ab" + bad + b"\nc\nd" + bad, "line")
    assert lines == [(1, words.format(first + 2)), (3, words.format(first + 7))]
    assert details(b"ab" + bad + b"\nc\nd" + bad, "file") == [(1, words.format(first + 2))]
    line = 2 if bad == b"\xff" else 1
    assert details(b"ab\n" + bad, "file") == [(line, words.format(first + 3))]


@pytest.mark.parametrize("unit", ["line", "file"])
def test_every_file_may_begin_with_a_mark_and_no_line_of_its_middle(unit: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_bytes(MARK + f"{name} one".encode())
    assert [row.text for row in read(kind="text", path=str(tmp_path / "*.txt"), unit=unit) if isinstance(row, Row)] == [
        "a one", "b one"
    ]  # fmt: skip
    (tmp_path / "a.txt").write_bytes(b"one\n" + MARK + b"two")
    first = read(kind="text", path=str(tmp_path / "a.txt"), unit=unit)
    assert [row.text for row in first if isinstance(row, Row)] == (
        ["one", "\ufefftwo"] if unit == "line" else ["one\n\ufefftwo"]
    )


def test_the_rows_of_several_tables_have_the_numbers_of_their_files(tmp_path: Path) -> None:
    """Each file has a header, and a blank line is a row without text."""
    (tmp_path / "a.csv").write_text('text,n\n"one\ntwo",1\n\nthree,2\n')
    (tmp_path / "b.csv").write_text("n,text\n3,four\n4\n")
    rows = read(kind="csv", path=[str(tmp_path / "b.csv"), str(tmp_path / "a.csv")], meta_columns=["n"])
    assert [(Path(row.file).name, row.line, row.text if isinstance(row, Row) else row.detail) for row in rows] == [
        ("b.csv", 2, "four"), ("b.csv", 3, "1 fields, the header has 2"), ("a.csv", 2, "one\ntwo"), ("a.csv", 4, ""),
        ("a.csv", 5, "three"),
    ]  # fmt: skip
    assert [row.meta for row in rows if isinstance(row, Row)] == ['{"n": "3"}', '{"n": "1"}', None, '{"n": "2"}']
    (tmp_path / "b.csv").write_bytes(b"n,te\xffxt\n3,four\n")
    with pytest.raises(SourceError, match=r"b\.csv: line 1: expected the header, found a line that cannot be read"):
        read(kind="csv", path=str(tmp_path / "b.csv"))


def layout(folder: Path, *names: str, texts: bool = True) -> Path:
    for name in names:
        place = folder / "texts" / f"{name}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        if texts:
            place.write_text(f"{folder.name} {name}")
    return folder


def test_held_out_rows_of_each_layout_are_divided_for_themselves(tmp_path: Path) -> None:
    """The first has rows for testing, so that its validation rows stay; the second has none."""
    one = layout(tmp_path / "one", "train/0", "validation/0", "test/0")
    two = layout(tmp_path / "two", "train/0", "dev/0")
    splits = {"validation": "held_out", "train": "hash"}
    rows = read(kind="layout", path=[str(one), str(two)], splits=splits)
    assert sorted((row.text, str(row.split)) for row in rows if isinstance(row, Row)) == [
        ("one test/0", "test"), ("one train/0", "None"), ("one validation/0", "validation"),
        ("two dev/0", "held_out"), ("two train/0", "None"),
    ]  # fmt: skip
    numbers = {path.name: [row.line for row in rows if str(path) in row.file] for path in (one, two)}
    assert numbers == {"one": [1] * 3, "two": [1] * 2}, "a document is one line of its own file"


def test_a_list_may_name_a_text_in_another_spelling(tmp_path: Path) -> None:
    """A text that a list names is not reported as one that no list names."""
    place = layout(tmp_path / "old", "train/0", "train/1", "train/2")
    names = ["./texts/train/0.txt", "texts//train/1.txt"]
    (place / "train_data.json").write_text(json.dumps([{"text_path": name} for name in names]))
    first, second, third = read(kind="layout", path=str(place))
    assert [getattr(row, "text", None) for row in (first, second)] == ["old train/0", "old train/1"]
    assert isinstance(third, BadRow)
    assert (third.reason, Path(third.file).name) == ("unlisted_file", "2.txt")


# -- the whole corpus --------------------------------------------------------------------------------------------------


def test_the_vocabulary_has_the_tokens_that_training_reads(bert: TextTokenizer, tmp_path: Path) -> None:
    """Not those behind the largest length, not those of held-out texts, nor of their second texts."""
    from mm_ldlm.data.corpus.record import RECORD_SCHEMA

    rows = [("a cat sat here", "train", None), ("dog", "train", "bird ran far away"), ("zebra", "test", "lion"),
            ("a horse", "validation", None)]  # fmt: skip
    writer = StoreWriter(tmp_path, kind="records", schema=RECORD_SCHEMA, shard_rows=3)
    writer.append({
        "id": [str(i) for i in range(4)], "text": [text for text, *_ in rows], "source": ["s"] * 4,
        "split": [split for _, split, _ in rows],
        "meta": [None if pair is None else json.dumps({"pair": pair}) for *_, pair in rows],
    })  # fmt: skip
    writer.finish()
    config = TokenizerConfig(max_length=3, too_long="truncate", reduce_vocabulary=True)
    found = build_tokenizer(ShardStore.open(tmp_path), config)
    words = {found.token(i) for i in range(found.vocab_size)} - {"[PAD]", "[MASK]", "[UNK]"}
    assert words == {"a", "cat", "sat", "dog", "bird", "ran", "far"}
    assert found.max_length == 3


def test_short_texts_are_no_near_duplicates_of_one_another(ingested: Any, tmp_path: Path) -> None:
    """Texts with fewer letters than a shingle have one shingle, the whole text."""
    (tmp_path / "a.txt").write_text("no\nyes\na b\nAh\nno!\nno\nNO\n")
    found = ingested({"kind": "text", "path": str(tmp_path / "a.txt"), "split": "train"}, near_duplicates={})
    assert found.texts == ["no", "yes", "a b", "Ah", "no!"]
    assert found.report["duplicates_by_kind"] == {"exact": 1, "near": 1}


def test_a_source_that_a_mixture_never_reached_is_not_empty(ingested: Any, tmp_path: Path) -> None:
    for name in ("large", "small"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {i}\n" for i in range(5)))
    found = ingested(
        {"kind": "text", "name": "large", "path": str(tmp_path / "large.txt"), "weight": 1000},
        {"kind": "text", "name": "small", "path": str(tmp_path / "small.txt"), "weight": 1},
    )
    assert found.texts == [f"large {i}" for i in range(5)]
    assert (found.report["sources"]["small"]["read"], found.report["sources"]["small"]["read_to_its_end"]) == (0, False)
    (tmp_path / "small.txt").write_text("")
    with pytest.raises(SourceError, match="source 'small' is empty"):
        ingested({"kind": "text", "name": "large", "path": str(tmp_path / "large.txt")},
                 {"kind": "text", "name": "small", "path": str(tmp_path / "small.txt")})  # fmt: skip


@pytest.mark.parametrize(("missing", "words"), [(3, "Name columns that the source has"), (2, "Correct the sources")])
def test_the_remedy_of_damage_is_that_of_its_larger_part(
    missing: int, words: str, ingested: Any, tmp_path: Path
) -> None:
    """The reasons are listed with the most frequent one first."""
    lines = ['{"text": "good"}', *['{"other": "x"}'] * missing, "{", "{"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(SourceError) as error:
        ingested({"kind": "jsonl", "path": str(tmp_path / "a.jsonl")})
    message = str(error.value)
    assert words in message
    counts = [f"{missing} missing_column", "2 broken_json"]
    places = [message.index(count) for count in counts]
    assert places == sorted(places) or missing == 2
    assert f"{missing + 2} of {missing + 3} rows are damaged" in message


@pytest.mark.parametrize("label", ["a\0b", "a\ud800", 1.5, ["a"], {"a": 1}])
def test_a_label_that_no_store_accepts_costs_its_row_alone(label: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "t", "k": each}) + "\n" for each in (label, "fine")))
    first, second = read(kind="jsonl", path=str(tmp_path / "a.jsonl"), label_column="k")
    assert isinstance(first, BadRow)
    assert first.reason == "wrong_type"
    assert "column 'k' contains" in first.detail
    assert isinstance(second, Row)
    assert json.loads(second.meta or "") == {"label": "fine"}


@pytest.mark.parametrize("signed", [True, False])
def test_near_duplicates_of_pairs_are_those_of_both_texts(signed: bool, tmp_path: Path) -> None:
    first = "a long sentence about a dog that runs in the morning"
    second = "ships sail over the wide and cold sea at midnight"
    third = "the committee did not approve the budget of this year"
    pairs = [
        (first, second),
        (first, third),
        (f"{first}s", second),
        (first, None),
        (second, first),
        (f"{first}s", None),
    ]
    sources = (SourceConfig(kind="text", path="x"),)
    config = IngestionConfig(sources=sources, near_duplicates=NearDuplicateConfig(threshold=0.7))
    tests, cleaner = RowTests(config, with_signatures=signed), Cleaner(config, Counts.empty(1))
    for text, pair in pairs:
        tested = tests([(0, Row(text, "f", 1, split="train", pair=pair))])
        assert (tested.signatures is not None) == signed
        cleaner.clean(tested)
    rows = cleaner.take_tables()[0].to_pylist()
    kept = [(row["text"], None if row["meta"] is None else json.loads(row["meta"])["pair"]) for row in rows]
    assert kept == [pairs[0], pairs[1], pairs[3]], "in another order, two texts have nearly the same shingles"
    assert dict(cleaner.counts.duplicates_by) == {"near": 3}
    assert dataclasses.replace(cleaner.counts).balanced
