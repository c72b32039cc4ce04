"""The older folder layout: what is written is read back, every row of a list is a row, and names stay in the folder."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.corpus import test_wrapping as wrapping
from tests.data.corpus.examples import Ingested, described, ingested, jsonl, read, reasons, texts

from mm_ldlm.core import ConfigurationError, FingerprintError, SourceError, StoreError, UnsafePathError
from mm_ldlm.data.corpus.quarantine import BadRow
from mm_ldlm.data.corpus.sources import Row
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.data.corpus.wrapping import TOKEN_IDS
from mm_ldlm.data.latents.store import KIND, LatentStore, schema, table
from mm_ldlm.data.store import ShardStore, write_store
from mm_ldlm.extras.layout.export import ExportConfig, write_layout
from mm_ldlm.extras.layout.pipeline import export_layout

TOKENIZER = load_tokenizer(TokenizerConfig(max_length=6))
ROWS = [{"text": f"text number {number}, a naïve one", "b": f"pair {number}", "split": split, "m": {"n": number}}
        for number, split in enumerate(["train", "test", "validation", "train", "train", "test"])]  # fmt: skip


def layout(path: Path, **keys: Any) -> dict[str, Any]:
    return {"kind": "layout", "path": str(path), **keys}


def opened(path: Path, **keys: Any) -> list[Row | BadRow]:
    return read(layout(path, **keys))


def folder_of(root: Path, files: dict[str, Any], *, packed: bool = False) -> Path:
    """Write files, as text, JSON or bytes, in a folder or a .zip."""
    raw = {name: each if isinstance(each, bytes) else (each if isinstance(each, str) else json.dumps(each)).encode()
           for name, each in files.items()}  # fmt: skip
    if packed:
        with zipfile.ZipFile(root / "layout.zip", "w") as archive:
            for name, content in raw.items():
                archive.writestr(name, content)
        return root / "layout.zip"
    for name, content in raw.items():
        (root / "layout" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "layout" / name).write_bytes(content)
    return root / "layout"


# -- written and read --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    folder = tmp_path_factory.mktemp("records")
    source = {
        "kind": "jsonl",
        **jsonl(folder, ROWS),
        "pair_column": "b",
        "split_column": "split",
        "meta_columns": ["m"],
    }
    return ingested(folder, source)


@pytest.fixture(scope="module")
def latents(made: Ingested, tmp_path_factory: pytest.TempPathFactory) -> LatentStore:
    folder = tmp_path_factory.mktemp("latents")
    vectors = np.random.default_rng(0).normal(size=(len(made.rows), 3)).astype(np.float16)
    write_store(
        folder, [table([row["id"] for row in made.rows], vectors)], kind=KIND, schema=schema(3, "float16"),
        fingerprints={"records": made.records.manifest.fingerprint},
    )  # fmt: skip
    return LatentStore.open(folder)


@pytest.mark.parametrize("name", ["out", "out.zip"])
def test_a_layout_that_was_written_is_read_back(
    made: Ingested, latents: LatentStore, tmp_path: Path, name: str
) -> None:
    config = ExportConfig(path=str(tmp_path / name))
    made_here = export_layout(made.records, latents, TOKENIZER, config, tmp_path / "unused")
    assert made_here["rows"] == {"train": 3, "validation": 1, "test": 2}
    back = ingested(tmp_path, layout(tmp_path / name), splits={"validation": 0.0, "test": 0.0})
    order = [row for split in ("test", "validation", "train") for row in made.rows if row["split"] == split]
    assert [{**row, "source": ""} for row in back.rows] == [{**row, "source": ""} for row in order]
    if name == "out":
        tokens = [
            np.load(tmp_path / name / f"tokens/{split}/00000000.npz")["input_ids"].tolist()
            for split in made_here["rows"]
        ]
        first = {row["split"]: row["text"] for row in reversed(made.rows)}
        assert tokens == [ids[:6] for ids in TOKENIZER.encode([first[split] for split in made_here["rows"]])]
    found = opened(tmp_path / name, latents=True)
    assert [Path(row.file).stem for row in found] == [f"{number:08d}" for number in (0, 1, 0, 0, 1, 2)], "in each split"
    vectors = dict(zip([row["text"] for row in made.rows], latents.fixed("latent").take(slice(None)), strict=True))
    for row in found:
        assert isinstance(row, Row)
        assert row.vector.dtype == np.float16
        assert (row.vector == vectors[row.text]).all()
    with pytest.raises(StoreError, match=name):
        write_layout(tmp_path / name, made.records, tokenizer=TOKENIZER, latents=None)


def test_a_layout_appears_when_it_is_complete(made: Ingested, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(type(TOKENIZER)):  # type: ignore[misc]
        def encode_base(self, texts: Any) -> Any:
            raise KeyboardInterrupt

    for name in ("out", "out.zip"):
        with pytest.raises(KeyboardInterrupt):
            write_layout(tmp_path / name, made.records, tokenizer=Broken(TOKENIZER.base, max_length=6), latents=None)
        assert list(tmp_path.iterdir()) == []


def test_a_wrapped_text_is_written_with_its_own_tokens(tmp_path: Path) -> None:
    tokens = wrapping.limits({})  # its texts begin and end inside words
    records, _ = wrapping.made(tmp_path, tokens)
    write_layout(tmp_path / "out", records, tokenizer=load_tokenizer(tokens), latents=None)
    splits = records.table(slice(None)).column("split").to_pylist()
    own = ShardStore.open(records.directory / TOKEN_IDS, TOKEN_IDS).table(slice(None)).column(TOKEN_IDS).to_pylist()
    for split in set(splits):
        written = [np.load(file)["input_ids"].tolist() for file in sorted((tmp_path / "out/tokens" / split).iterdir())]
        assert written == [ids for ids, each in zip(own, splits, strict=True) if each == split]


def test_latents_of_other_records_are_not_written(made: Ingested, latents: LatentStore, tmp_path: Path) -> None:
    other = ingested(tmp_path / "other", {"kind": "jsonl", **jsonl(tmp_path, ROWS[:2])}).records
    with pytest.raises(FingerprintError):
        write_layout(tmp_path / "out", other, tokenizer=TOKENIZER, latents=latents)


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize(("packed", "slash"), [(True, "/"), (True, "\\"), (False, "/")])
def test_pitfall_30_every_text_of_a_layout_is_a_row(tmp_path: Path, lists: bool, packed: bool, slash: str) -> None:
    names = ("train/a.txt", "train/b.txt", "other/c.txt", "d.txt", "train/e.md")
    files: dict[str, Any] = {f"texts/{name}".replace("/", slash): "text" for name in names}
    if lists:
        files["train_data.json"] = [
            {"text_path": f"{'' if packed else './'}texts{slash}train{slash}a.txt"},
            {"text_path": 5},
        ]
    if packed:
        files[f"texts{slash}train{slash}"] = ""  # archives also contain their folders
    rows = opened(folder_of(tmp_path, files, packed=packed))
    assert len(rows) == 5 + lists
    assert len(texts(rows)) == (1 if lists else 2)
    assert reasons(rows).count("unlisted_file") == (4 if lists else 3)


def test_texts_that_a_list_names_elsewhere_and_latents_that_are_read_are_described(tmp_path: Path) -> None:
    files = {"train_data.json": [{"text_path": "own/a.txt"}], "own/a.txt": "one", "latents/a.npy": "1"}
    found = []
    for change in ({}, {"own/a.txt": "two"}, {"latents/a.npy": "22"}):
        path = folder_of(tmp_path, {**files, **change})
        found.append([str(described(layout(path, latents=latents))) for latents in (False, True)])
    assert [len({each[latents] for each in found}) for latents in (False, True)] == [2, 3]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=3) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["id", "text", "text_path", "token_path", "latent_path", "source", "meta"]


@settings(max_examples=60)
@given(items=st.lists(st.dictionaries(st.sampled_from(KEYS), ODD), max_size=4), parts=st.booleans())
def test_lists_of_any_values_lose_no_item(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]], parts: bool
) -> None:
    path = folder_of(tmp_path_factory.mktemp("case"), {"train_data.json": items, "texts/.keep/a": ""})
    rows = opened(path, latents=parts)
    assert len(rows) == len(items) + 1
    assert reasons(rows)[-1] == "unlisted_file"


@pytest.mark.parametrize("content", ["{", "5", '{"data": 5}', "[5]", b"\xff", '[{"a": 1, "a": 2}]', "[" * 9000])
def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(SourceError, match=r"train_data\.json"):
        opened(folder_of(tmp_path, {"train_data.json": content}))


def test_a_folder_without_rows_and_an_archive_that_is_damaged_are_refused(
    tmp_path: Path, refuses: Callable[..., Any]
) -> None:
    with refuses(SourceError, "texts/<split>"):
        opened(folder_of(tmp_path, {"notes.txt": ""}))
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 not an archive")
    with refuses(SourceError, "broken.zip"):
        opened(tmp_path / "broken.zip")
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("texts/train/a.txt", "one")
        archive.writestr("texts\\train\\a.txt", "two")
    with refuses(SourceError, "texts/train/a.txt"):
        opened(tmp_path / "twice.zip")
    for name in ("/texts/train/a.txt", "..\\texts\\train\\a.txt"):
        with zipfile.ZipFile(tmp_path / "outside.zip", "w") as archive:
            archive.writestr(name, "one")
        with pytest.raises(UnsafePathError):
            opened(tmp_path / "outside.zip")


def test_a_damaged_member_of_an_archive_is_one_bad_row(tmp_path: Path) -> None:
    files = {"texts/train/a.txt": "text of the first", "texts/train/b.txt": "y" * 301, "texts/train/c.txt": "z" * 300}
    path = folder_of(tmp_path, files, packed=True)
    path.write_bytes(path.read_bytes().replace(b"text of the first", b"text of the FIRST"))
    rows = read(layout(path), max_row_bytes=300)
    assert (reasons(rows), texts(rows)) == (["unreadable_file", "oversized"], ["z" * 300])


@pytest.mark.parametrize("packed", [True, False])
def test_pitfall_29_names_of_a_list_stay_in_the_folder(tmp_path: Path, packed: bool) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    names = [
        "../secret.txt",
        str(tmp_path / "secret.txt"),
        "texts/../../secret.txt",
        "",
        "texts\0",
        "texts",
        "link.txt",
        "pipe",
    ]
    path = folder_of(tmp_path, {"train_data.json": [{"text_path": name} for name in names]}, packed=packed)
    if not packed:
        (path / "link.txt").symlink_to(tmp_path / "secret.txt")
        os.mkfifo(path / "pipe")
        (path / "texts").mkdir()
    rows = opened(path)
    assert set(reasons(rows)) <= {"unsafe_path", "missing_file", "wrong_type"}
    assert len(reasons(rows)) == len(names)


# -- parts -------------------------------------------------------------------------------------------------------------


def test_damaged_parts_are_bad_rows_with_their_reasons(tmp_path: Path) -> None:
    vectors = {
        "good": np.ones(3),
        "row": np.ones((1, 3)),
        "matrix": np.ones((2, 3)),
        "text": np.array(["a"]),
        "pickle": np.array([{}]),
    }
    names = (*vectors, "broken", "missing")
    files = {f"texts/train/{name}.txt": f"text {name}" for name in names}
    path = folder_of(tmp_path, {**files, "latents/train/broken.npy": b"\x93NUMPY"})
    for name, each in vectors.items():
        np.save(path / f"latents/train/{name}.npy", each)
    from mm_ldlm.extras.own_vectors.store import VectorStore

    out = ingested(tmp_path, layout(path, latents=True), side=VectorStore(3, tmp_path / "records/vectors"))
    assert out.texts == ["text good", "text row"]
    assert {Path(row["file"]).stem: row["reason"] for row in out.refused} == {
        "matrix": "wrong_type", "text": "wrong_type", "broken": "unreadable_file", "pickle": "unreadable_file",
        "missing": "missing_file",
    }  # fmt: skip


def test_ids_of_other_programs_and_splits_are_kept(tmp_path: Path) -> None:
    names = {"train": ["a", "b"], "validation": ["c"], "test": []}
    files = {
        f"{split}_data.json": [{"id": f"id-{n}", "text": f"text {n}"} for n in found] for split, found in names.items()
    }
    path = folder_of(tmp_path, files)
    rows = [row for row in opened(path) if isinstance(row, Row)]
    assert [(row.text, row.split, row.meta) for row in rows] == [
        (f"text {name}", split, {"layout_id": f"id-{name}"})
        for split in ("validation", "train") for name in names[split]
    ]  # fmt: skip
    held = opened(path, splits={"validation": "held_out", "train": "hash"})
    assert [row.split for row in held if isinstance(row, Row)] == ["held_out", None, None]
    (path / "test_data.json").write_text('[{"id": 12, "text": "tested"}, {"id": true, "text": "refused"}]')
    tested = opened(path, splits={"validation": "held_out"})  # another split is for testing already
    assert getattr(tested[0], "meta", None) == {"layout_id": "12"}
    assert [row.split for row in tested if isinstance(row, Row)] == ["test", "validation", "train", "train"]
    with pytest.raises(ConfigurationError, match="dev"):
        opened(path, splits={"dev": "train"})
