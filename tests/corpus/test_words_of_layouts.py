"""The messages of folder layouts, word for word, and what their names and files decide."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError, StoreError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, complete_specials
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import file_sha256, fingerprint
from mm_ldlm.extras.layout.reading import Entry, Folder, describe_layout
from mm_ldlm.extras.layout.writing import export_layout
from stand_ins import refused


def words(*more: str) -> Any:
    """A base tokenizer of the words [UNK] 0, a 1, b 2, c 3 and further ones, [PAD] and [MASK]."""
    vocabulary = ("[UNK]", "a", "b", "c", *more)
    base = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return complete_specials(base)


def stored(folder: Path, *texts: str, split: str = "train", pair: str | None = None) -> ShardStore:
    writer = StoreWriter(folder, kind="records", schema=RECORD_SCHEMA)
    count = len(texts)
    meta = None if pair is None else json.dumps({"pair": pair})
    writer.append({"id": [f"id {number}" for number in range(count)], "text": list(texts), "source": ["s"] * count,
                   "split": [split] * count, "meta": [meta] * count})  # fmt: skip
    writer.finish()
    return ShardStore.open(folder)


# -- layouts -----------------------------------------------------------------------------------------------------------


def npz(ids: Any) -> bytes:
    sink = io.BytesIO()
    np.savez(sink, input_ids=np.array(ids))
    return sink.getvalue()


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def layout(place: Path, files: dict[str, bytes], items: list[dict[str, Any]]) -> Path:
    for name, data in {**files, "train_data.json": json.dumps(items).encode()}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def read(place: Path, tokenizer: Any = None, *, max_row_bytes: int = 2_000, **keys: Any) -> list[Row | BadRow]:
    config = parse(SourceConfig, {"kind": "layout", "path": str(place), **keys}, at="s")
    return list(open_source(config, seed=0, max_row_bytes=max_row_bytes, tokenizer=tokenizer).rows())


def test_parts_of_a_layout_that_cannot_be_used_are_told_whole(tmp_path: Path) -> None:
    ours = TextTokenizer(words(), max_length=5)
    files = {
        "tokens/train/0.npz": npz([1, 2]), "tokens/train/1.npz": b"none", "tokens/train/2.npz": npz([2, 6, 1]),
        "tokens/train/3.npz": npz([1, -2, 0]), "tokens/train/4.npz": npz([1]), "latents/train/4.npy": b"none",
        "tokens/train/5.npz": npz([1]), "tokens/train/6.npz": npz([1]), "latents/train/6.npy": npy(np.ones(600)),
        "latents/train/0.npy": npy(np.array([0.1, 3.0])),
    }  # fmt: skip
    items = [{"id": f"i{number}" if number % 2 else None, "token_path": f"tokens/train/{number}.npz"}
             for number in range(8)]  # fmt: skip
    place = layout(tmp_path / "old", files, [*items, {"id": "alone"}])
    good, *bad = read(place, ours, tokens=True, latents=True)
    assert isinstance(good, Row)
    vector = np.asarray(good.vector)
    assert (good.text, vector.dtype, vector.tolist()) == ("a b", np.float64, [0.1, 3.0])
    other = "the configured tokenizer has 6 tokens: tokenizer.name must be that of the stored tokens"
    assert [tuple(row)[1:4] for row in bad if row.reason != "unreadable_file"] == [  # type: ignore[union-attr]
        (1, "other_tokens", f"ids 1 to 6, {other}"), (1, "other_tokens", f"ids -2 to 1, {other}"),
        (1, "missing_file", "the latent of i5 names a file that does not exist"),
        (1, "oversized", "a document of more than 2000 bytes"),
        (1, "missing_file", "the tokens of i7 names a file that does not exist"),
        (9, "missing_column", "the tokens of alone: the list names no file"),
    ]  # fmt: skip
    unreadable = [row for row in bad if row.reason == "unreadable_file"]  # type: ignore[union-attr]
    assert [(row.file, row.line) for row in unreadable] == [
        (f"{place}/tokens/train/1.npz", 1), (f"{place}/latents/train/4.npy", 1)
    ]  # fmt: skip
    assert unreadable[0].detail.startswith("no array 'input_ids' can be read from it (")  # type: ignore[union-attr]
    assert unreadable[1].detail.startswith("not a readable .npy array (its header cannot be read (")  # type: ignore[union-attr]


def test_a_row_is_named_by_its_id_or_else_by_its_files(tmp_path: Path) -> None:
    files = {"texts/train/1.txt": b"a b"}
    text = {"text_path": "texts/train/1.txt"}
    place = layout(tmp_path / "old", files, [text, {**text, "id": "one"}, {"text": "a"}, {"text": "a", "id": "two"}])
    ours = TextTokenizer(words(), max_length=5)
    for keys, part, name in (({"tokens": True}, "tokens", "tokens/train/1.npz"),
                             ({"latents": True}, "latent", "latents/train/1.npy")):  # fmt: skip
        assert [tuple(row) for row in read(place, ours, **keys)] == [
            (f"{place}/{name}", 1, "missing_file", f"the {part} of texts/train/1.txt names a file that does not exist",
             ""),
            (f"{place}/{name}", 1, "missing_file", f"the {part} of one names a file that does not exist", ""),
            (str(place), 3, "missing_column", f"the {part} of None: the list names no file", ""),
            (str(place), 4, "missing_column", f"the {part} of two: the list names no file", ""),
        ]  # fmt: skip


def test_a_text_of_a_layout_that_is_not_utf8_is_told_with_its_byte(tmp_path: Path) -> None:
    place = layout(tmp_path / "old", {"texts/train/1.txt": b"ab\ncaf\xe9!"}, [{"text_path": "texts/train/1.txt"}])
    assert read(place) == [BadRow(
        f"{place}/texts/train/1.txt", 1, "encoding",
        "byte 0xe9 at byte 6 of the file is not utf-8: convert the file (iconv -f latin1 -t utf-8) or set the source's "
        "'encoding'", "ab\ncaf\\xe9!",
    )]  # fmt: skip


def test_an_entry_is_named_by_its_list_and_not_by_the_split_of_its_record(tmp_path: Path) -> None:
    place = layout(tmp_path / "old", {}, [{"text": "a"}, {"text_path": "texts/train/1.txt"}])
    _, bad = read(place, splits={"train": "test"})
    assert isinstance(bad, BadRow)
    assert bad.detail == "entry 2 of the train list names a file that does not exist"


@pytest.mark.parametrize("name", ["./texts/train/1.txt", "texts//train/1.txt", "texts/./train/1.txt"])
def test_a_text_that_a_list_names_in_another_spelling_is_no_second_row(name: str, tmp_path: Path) -> None:
    place = layout(tmp_path / "old", {"texts/train/1.txt": b"a"}, [{"text_path": name}])
    assert [type(row) for row in read(place)] == [Row]


def test_the_id_of_a_pair_in_a_layout_is_that_of_both_texts(tmp_path: Path) -> None:
    items = [{"text": "a", "meta": {"pair": "b"}, "id": record_id("a", "b")},
             {"text": "a", "meta": {"pair": "b"}, "id": record_id("a")}]  # fmt: skip
    metas = [json.loads(row.meta or "") for row in read(layout(tmp_path / "old", {}, items)) if isinstance(row, Row)]
    assert metas == [{"pair": "b"}, {"pair": "b", "layout_id": record_id("a")}]


@pytest.mark.parametrize("splits", [{"validation": "held_out"}, {"validation": "held_out", "test": "hash"}])
def test_held_out_rows_are_divided_unless_other_rows_are_for_testing(splits: dict[str, str], tmp_path: Path) -> None:
    for test in (None, [], [{"text": "t"}]):
        place = layout(tmp_path / f"{test}", {}, [{"text": "a"}])
        (place / "validation_data.json").write_text('[{"text": "v"}]')
        if test is not None:
            (place / "test_data.json").write_text(json.dumps(test))
        found = {row.text: row.split for row in read(place, splits=splits) if isinstance(row, Row)}
        whole = bool(test) and "test" not in splits
        assert found["v"] == ("validation" if whole else "held_out")
        assert found["a"] == "train"
        assert not test or found["t"] == (None if "test" in splits else "test")


def test_an_archive_that_is_damaged_or_encrypted_costs_its_rows_alone(tmp_path: Path) -> None:
    """Whatever Python raises for a member: of a wrong checksum, encrypted, cut off, or compressed in an unknown way."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("texts/train/1.txt", b"one text " * 9)
    whole = path.read_bytes()
    local, central = whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02")
    changes = {
        "encrypted": ({local + 6: 1, central + 8: 1}), "method": ({local + 8: 99, central + 10: 99}),
        "checksum": ({central + 16: whole[central + 16] ^ 255}), "stream": ({local + 30 + 17: 7}),
    }  # fmt: skip
    for name, bytes_at in changes.items():
        raw = bytearray(whole)
        for place, value in bytes_at.items():
            raw[place] = value
        path.write_bytes(bytes(raw))
        (bad,) = read(path)
        assert isinstance(bad, BadRow), name
        assert (bad.file, bad.line, bad.reason) == (f"{path}/texts/train/1.txt", 1, "unreadable_file")
        assert bad.detail.startswith(
            "entry 1 of the train list: the archive is damaged there, encrypted or of an unknown compression ("
        ), name
    path.write_bytes(whole[:-30])
    with pytest.raises(SourceError) as raised:
        read(path)
    assert re.fullmatch(rf"{path}: the archive is damaged \(.+\)\. Fetch it again\.", str(raised.value))


@pytest.mark.parametrize(
    "error", [zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError]
)
def test_whatever_an_archive_raises_is_told_as_damage(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.zip"
    with Folder(path, "w") as folder:
        folder.write("a", b"one")

    def damaged(*_: Any) -> Any:
        raise error("why")

    with Folder(path) as folder:
        monkeypatch.setattr(folder._zip, "open", damaged)
        assert refused(OSError, lambda: folder.read("a")) == (
            "the archive is damaged there, encrypted or of an unknown compression (why)"
        )
    if error in (zipfile.BadZipFile, NotImplementedError, ValueError):
        monkeypatch.setattr(zipfile, "ZipFile", damaged)
        assert refused(SourceError, lambda: Folder(path)) == f"{path}: the archive is damaged (why). Fetch it again."


def test_a_layout_is_described_by_its_lists_and_the_names_and_sizes_of_its_files(tmp_path: Path) -> None:
    files = {
        "texts/train/1.txt": b"a",
        "texts/train/2.txt": b"bb",
        "tokens/train/1.npz": b"x",
        "latents/dev/1.npy": b"y",
    }
    place, parts = layout(tmp_path / "old", files, []), ("tokens", "latents")
    before, plain = describe_layout(place, parts=parts), describe_layout(place)
    assert describe_layout(place, parts=parts) == before != plain
    seen = {str(before), str(describe_layout(place, parts=parts[:1]))}
    for name, data in (("texts/train/2.txt", b"b"), ("tokens/train/1.npz", b"xx"), ("latents/dev/1.npy", b"yy"),
                       ("test_data.json", b"[]"), ("texts/train/3.txt", b""), ("latents/dev/2.npy", b"")):  # fmt: skip
        (place / name).write_bytes(data)
        seen.add(str(describe_layout(place, parts=parts)))
    assert len(seen) == 8
    assert describe_layout(place) != plain


def test_the_description_of_a_layout_is_that_of_earlier_versions(tmp_path: Path) -> None:
    files = {
        "texts/train/2.txt": b"bb",
        "texts/dev/1.txt": b"a",
        "tokens/train/1.npz": b"xyz",
        "texts/train/1.txt": b"",
    }
    place = layout(tmp_path / "old", files, [])
    lists = {"train_data.json": file_sha256(place / "train_data.json")}
    texts = [["texts/dev/1.txt", 1], ["texts/train/1.txt", 0], ["texts/train/2.txt", 2]]
    assert describe_layout(place) == {"fingerprint": fingerprint([lists, texts])}
    tokens = [["tokens/train/1.npz", 3, (place / "tokens/train/1.npz").stat().st_mtime_ns]]
    found = describe_layout(place, parts=["latents", "tokens"])
    assert found == {"fingerprint": fingerprint([lists, texts, tokens])}
    with Folder(place) as folder:
        assert list(folder.entries()) == [
            Entry("train", name, fault=("unlisted_file", "no list names this file: it is not read"))
            for name, _ in texts
        ]


def test_an_export_of_other_tokens_is_refused_and_lists_what_it_wrote(tmp_path: Path) -> None:
    records, fewer = stored(tmp_path / "r", "a", "b", "c"), stored(tmp_path / "t", "a", "b")
    assert refused(StoreError, lambda: export_layout(tmp_path / "old", records, tokens=fewer)) == (
        "expected as many rows of tokens as records, found 2 and 3. Use stores of the same ingestion."
    )
    assert not (tmp_path / "old").exists()
    for number, (keys, names) in enumerate((
        ({}, ["text"]), ({"with_latents": True}, ["text", "latent"]),
        ({"tokenizer": TextTokenizer(words(), max_length=5)}, ["text", "token"]),
        ({"tokenizer": TextTokenizer(words(), max_length=5), "with_latents": True}, ["text", "token", "latent"]),
    )):  # fmt: skip
        place = tmp_path / f"new{number}"
        assert export_layout(place, records, **keys) == {"train": 3, "validation": 0, "test": 0}  # type: ignore[arg-type]
        listed = json.loads((place / "train_data.json").read_text())
        assert [[key for key in item if key.endswith("_path")] for item in listed] == [[f"{n}_path" for n in names]] * 3
        with Folder(place) as folder:
            assert len(folder.names("texts/")) == 3
            assert len(folder.names("tokens/")) == 3 * ("token" in names)
