"""Parts of a folder layout: which file belongs to which row, what a list adds, and how an archive differs."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import UnsafePathError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.extras.layout.reading import Entry, Folder, describe_layout, paired, parse_tokens, paths_of
from mm_ldlm.extras.layout.source import LAYOUT_ID
from mm_ldlm.extras.layout.writing import export_layout


def read(path: Path, *, tokenizer: Any = None, max_row_bytes: int = 5_000, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, {"kind": "layout", "path": str(path), **keys}, at="source")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, tokenizer=tokenizer).rows())


def npz(ids: Any) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=np.array(ids))
    return sink.getvalue()


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def written(place: Path, files: dict[str, bytes | str]) -> Path:
    """Write the files into a folder or, by its suffix, an archive."""
    raw = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "w") as archive:
            for name, data in raw.items():
                archive.writestr(name, data)
        return place
    for name, data in raw.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


# -- names -------------------------------------------------------------------------------------------------------------


def test_the_files_of_a_row_have_eight_digits() -> None:
    assert paths_of("test", 12) == {
        "text_path": "texts/test/00000012.txt", "token_path": "tokens/test/00000012.npz",
        "latent_path": "latents/test/00000012.npy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "tokens", "latents"),
    [
        (Entry("train", "texts/a/1.txt"), "tokens/a/1.npz", "latents/a/1.npy"),
        (Entry("train", None, "tokens/b/2.npz"), "tokens/b/2.npz", "latents/b/2.npy"),
        (Entry("train", None, None, "latents/c/3.npy"), "tokens/c/3.npz", "latents/c/3.npy"),
        (Entry("train", "texts/a/1.txt", "tokens/b/2.npz"), "tokens/b/2.npz", "latents/a/1.npy"),
        (Entry("train", "texts/a/1.txt", None, "latents/c/3.npy"), "tokens/a/1.npz", "latents/c/3.npy"),
        (Entry("train", "elsewhere/1.txt", "tokens/b/2.npz"), "tokens/b/2.npz", "latents/b/2.npy"),
        (Entry("train", "elsewhere/1.txt", None, "latents/c/3.npy"), "tokens/c/3.npz", "latents/c/3.npy"),
        (Entry("train", "texts", None, "latents/c/3.npy"), "tokens/c/3.npz", "latents/c/3.npy"),
        (Entry("train", None, text="alone"), None, None),
        (Entry("train", "elsewhere/1.txt"), None, None),
    ],
)  # fmt: skip
def test_a_part_that_is_not_named_has_the_name_of_the_first_other_part(
    entry: Entry, tokens: str | None, latents: str | None
) -> None:
    assert (paired(entry, "tokens"), paired(entry, "latents")) == (tokens, latents)


# -- folders and archives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["old", "old.zip"])
def test_names_are_sorted_and_files_alone(name: str, tmp_path: Path) -> None:
    files = {f"texts/{each}": "x" for each in ("b/2.txt", "a/1.txt", "c", "b/1.txt")} | {"tokens/a": "x", "more": ""}
    place = written(tmp_path / name, dict(sorted(files.items(), reverse=True)))
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "a") as archive:
            archive.mkdir("texts/a0")
    else:
        (place / "texts/a0").mkdir()
    with Folder(place) as folder:
        assert folder.names() == sorted(files)
        assert folder.names("texts/") == ["texts/a/1.txt", "texts/b/1.txt", "texts/b/2.txt", "texts/c"]
        assert folder.names("texts/b/") == ["texts/b/1.txt", "texts/b/2.txt"]
        assert (folder.read("tokens/a"), folder.read("more")) == (b"x", b"")
        for missing in ("texts/none", "none"):
            with pytest.raises(FileNotFoundError, match=missing):
                folder.read(missing)
        for outside in ("../old", "texts/../../x", "/etc/hostname", ""):
            with pytest.raises(UnsafePathError):
                folder.read(outside)


@pytest.mark.parametrize("name", ["old", "old.zip"])
@pytest.mark.parametrize(("most", "length"), [(None, 9), (9, 9), (8, 9), (3, 4), (0, 1)])
def test_one_byte_more_than_the_largest_size_is_read(most: int | None, length: int, name: str, tmp_path: Path) -> None:
    """So that the caller finds that a file is larger."""
    with Folder(written(tmp_path / name, {"a": b"123456789"})) as folder:
        assert folder.read("a", max_bytes=most) == b"123456789"[:length]


@pytest.mark.parametrize("name", ["old", "old.zip"])
def test_a_document_of_the_largest_size_is_a_row(name: str, tmp_path: Path) -> None:
    place = written(tmp_path / name, {"texts/train/a.txt": "x" * 20})
    (row,) = read(place, max_row_bytes=20)
    assert isinstance(row, Row)
    assert (row.text, row.split, row.line, row.file) == ("x" * 20, "train", 1, f"{place}/texts/train/a.txt")
    (bad,) = read(place, max_row_bytes=19)
    assert bad == BadRow(f"{place}/texts/train/a.txt", 1, "oversized", "a document of more than 19 bytes", "x" * 20)


def test_a_folder_may_have_the_suffix_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.zip").mkdir()
    with Folder(tmp_path / "a.zip", "w") as folder:
        folder.write("texts/train/1.txt", b"one")
    assert (tmp_path / "a.zip/texts/train/1.txt").read_bytes() == b"one"
    assert [row.text for row in read(tmp_path / "a.zip") if isinstance(row, Row)] == ["one"]


def test_an_archive_is_described_by_its_bytes_and_not_by_its_name(tmp_path: Path) -> None:
    first = written(tmp_path / "a.zip", {"texts/train/1.txt": "one"})
    (tmp_path / "b.zip").write_bytes(first.read_bytes())
    before = describe_layout(first)
    assert describe_layout(tmp_path / "b.zip", parts=["tokens"]) == before
    with zipfile.ZipFile(first, "a") as archive:
        archive.writestr("texts/train/2.txt", "two")
    assert describe_layout(first) != before


def test_splits_are_named_by_their_words_in_texts_and_in_tokens(tmp_path: Path) -> None:
    for files, splits in (
        (["texts/train/1.txt", "tokens/dev/1.npz"], ["train", "validation"]),
        (["tokens/valid/1.npz", "tokens/val/2.npz"], ["validation"]), (["tokens/test/1.npz", "notes/dev/1"], ["test"]),
        (["latents/dev/1.npy", "texts/other/1.txt"], []),
    ):  # fmt: skip
        place = written(tmp_path / f"{len(list(tmp_path.iterdir()))}", dict.fromkeys(files, ""))
        with Folder(place) as folder:
            assert folder.splits() == splits


# -- lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        ('{"a":1,  "b": "é"}', '{"a":1,  "b": "é"}'), ({"a": 1, "b": "é"}, '{"a": 1, "b": "\\u00e9"}'), (None, None),
        ("", None), ({}, None), ('{"a": "\ud800"}', '{"a": "\\ud800"}'),
    ],
)  # fmt: skip
def test_meta_is_kept_letter_for_letter_where_a_store_accepts_it(meta: Any, kept: str | None, tmp_path: Path) -> None:
    (row,) = read(written(tmp_path / "old", {"train_data.json": json.dumps([{"text": "one", "meta": meta}])}))
    assert row == Row("one", str(tmp_path / "old"), 1, "train", kept)


@pytest.mark.parametrize("pair", ["two", 5, None, ["two"]])
def test_the_second_text_of_a_pair_is_one_that_is_text(pair: Any, tmp_path: Path) -> None:
    listed = [{"text": "one", "meta": {"pair": pair}, "id": record_id("one", pair) if pair == "two" else "x"}]
    (row,) = read(written(tmp_path / "old", {"test_data.json": json.dumps(listed)}))
    assert isinstance(row, Row)
    assert (row.split, row.pair) == ("test", "two" if pair == "two" else None)
    assert json.loads(row.meta or "").get(LAYOUT_ID) == (None if pair == "two" else "x")


def test_a_decoded_row_keeps_its_meta_and_the_id_of_the_layout(tmp_path: Path, bert: TextTokenizer) -> None:
    ids = bert.encode(["a red cat"])[0]
    listed = [{"token_path": "tokens/train/7.npz", "meta": {"k": 1, LAYOUT_ID: "old"}, "id": record_id("a red cat")},
              {"token_path": "tokens/train/7.npz", "meta": {"k": 2}}]  # fmt: skip
    place = written(tmp_path / "old", {"tokens/train/7.npz": npz(ids), "train_data.json": json.dumps(listed)})
    first, second = read(place, tokens=True, tokenizer=bert)
    for row in (first, second):
        assert isinstance(row, Row)
        assert (row.text, row.file, row.line) == ("a red cat", f"{place}/tokens/train/7.npz", 1)
        assert row.tokens is not None
        assert (row.tokens.ids.tolist(), row.tokens.decoded, row.tokens.ids.dtype) == (ids, True, np.int32)
    assert json.loads(getattr(first, "meta", "")) == {
        "k": 1, "decoded_from_tokens": True, LAYOUT_ID: record_id("a red cat")
    }  # fmt: skip
    assert json.loads(getattr(second, "meta", "")) == {"k": 2, "decoded_from_tokens": True}


@pytest.mark.parametrize(
    ("array", "kept"),
    [
        (np.arange(3.0), True), (np.arange(3.0)[None], True), (np.arange(3)[:, None], True), (np.ones(1, "f2"), True),
        (np.array(2.0), False), (np.ones((2, 2)), False), (np.array(["a"]), False), (np.array([True]), False),
    ],
)  # fmt: skip
def test_a_latent_is_one_row_of_numbers(array: Any, kept: bool, tmp_path: Path) -> None:
    place = written(tmp_path / "old", {"texts/train/1.txt": "one", "latents/train/1.npy": npy(array)})
    (row,) = read(place, latents=True)
    if kept:
        assert isinstance(row, Row)
        assert (np.asarray(row.vector).tolist(), np.asarray(row.vector).dtype) == (array.ravel().tolist(), array.dtype)
        return
    detail = f"expected a vector of numbers (d,) or (1, d), found shape {array.shape} and type {array.dtype}"
    assert row == BadRow(f"{place}/latents/train/1.npy", 1, "wrong_type", detail)


@pytest.mark.parametrize("ids", [[1, 2, 3], [[4, 5]], []])
def test_tokens_of_the_largest_size_are_read(ids: Any) -> None:
    data, array = npz(np.array(ids, np.int64)), np.array(ids, np.int64)
    size = len(npy(array))
    found = parse_tokens(data, max_bytes=size)
    assert (found.tolist(), found.dtype, found.ndim) == (array.ravel().tolist(), np.int32, 1)
    with pytest.raises(ValueError, match=rf"{size} bytes, at most {size - 1} are read"):
        parse_tokens(data, max_bytes=size - 1)


# -- export ------------------------------------------------------------------------------------------------------------


def test_an_export_with_a_tokenizer_has_its_whole_vocabulary_up_to_its_length(
    tmp_path: Path, bert: TextTokenizer
) -> None:
    writer = StoreWriter(tmp_path / "r", kind="records", schema=RECORD_SCHEMA)
    texts = ["a red cat sat", "é blue"]
    writer.append({"id": ["i", "j"], "text": texts, "source": ["s1", "s2"], "split": ["test", "train"],
                   "meta": ['{"k":"é"}', None]})  # fmt: skip
    writer.finish()
    small = bert.with_vocabulary(bert.encode_base(["cat"])[0])
    tokenizer = TextTokenizer(small.base, max_length=3, kept=small.kept_V)
    counts = export_layout(tmp_path / "old", ShardStore.open(tmp_path / "r"), tokenizer=tokenizer)
    assert (counts, tokenizer.reduced) == ({"train": 1, "validation": 0, "test": 1}, True)
    for split, text in (("test", texts[0]), ("train", texts[1])):
        found = parse_tokens((tmp_path / f"old/tokens/{split}/00000000.npz").read_bytes())
        assert found.tolist() == bert.encode([text])[0][:3]
        assert (tmp_path / f"old/texts/{split}/00000000.txt").read_text(encoding="utf-8") == text
    raw = (tmp_path / "old/test_data.json").read_text(encoding="utf-8")
    assert "é" in raw, "letters are readable"
    assert json.loads(raw) == [{
        "id": "i", "text_path": "texts/test/00000000.txt", "token_path": "tokens/test/00000000.npz", "source": "s1",
        "meta": '{"k":"é"}',
    }]  # fmt: skip
