from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError, StoreError
from mm_ldlm.data.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.data.corpus.sources import Row, SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.data.store import ShardStore, StoreWriter
from mm_ldlm.extras.layout.reading import Folder, paired, parse_tokens
from mm_ldlm.extras.layout.writing import export_layout

ROWS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
        st.sampled_from(SPLITS),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9),
        st.sampled_from([None, '{"shape": "x"}']),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[0],
)


def stores(folder: Path, rows: list[Any]) -> tuple[ShardStore, ShardStore]:
    ids = [record_id(row[0]) for row in rows]
    writer = StoreWriter(folder / "records", kind="records", schema=RECORD_SCHEMA, shard_rows=5)
    columns = {
        "id": ids,
        "text": [row[0] for row in rows],
        "source": ["s"] * len(rows),
        "split": [row[1] for row in rows],
    }
    writer.append({**columns, "meta": [row[3] for row in rows]})
    writer.finish()
    tokens = StoreWriter(folder / "tokens", kind="tokens", schema=TOKEN_SCHEMA, shard_rows=5)
    tokens.append({"id": ids, "input_ids": [row[2] for row in rows], "length": [len(row[2]) for row in rows]})
    tokens.finish()
    return ShardStore.open(folder / "records"), ShardStore.open(folder / "tokens")


def read(place: Path) -> list[Any]:
    return list(
        open_source(
            parse(SourceConfig, {"kind": "layout", "path": str(place)}, at="s"), seed=0, max_row_bytes=10**6
        ).rows()
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, packed=st.booleans())
def test_the_source_reads_all_that_the_export_writes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], packed: bool
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    records, tokens = stores(folder, rows)
    place = folder / ("layout.zip" if packed else "layout")
    counts = export_layout(place, records, tokens=tokens)
    assert sum(counts.values()) == len(rows)
    expected = [row for split in reversed(SPLITS) for row in rows if row[1] == split]
    found = read(place)
    assert all(isinstance(row, Row) for row in found)
    # An id that follows from the text is not kept beside it.
    assert [(row.text, row.split, row.meta) for row in found] == [(row[0], row[1], row[3]) for row in expected]
    with Folder(place) as layout:
        ids = [parse_tokens(layout.read(paired(entry, "tokens") or "")).tolist() for entry in layout.entries()]
    assert ids == [row[2] for row in expected]


@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_the_files_are_where_the_older_programs_look(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.layout.writing._BATCH", at_once)
    rows = [("a cat", "train", [1, 2], None), ("a dog", "validation", [3], None), ("an ant", "train", [4, 5], None)]
    records, tokens = stores(tmp_path, rows)
    assert export_layout(tmp_path / "old", records, tokens=tokens) == {"train": 2, "validation": 1, "test": 0}
    assert (tmp_path / "old/texts/train/00000001.txt").read_text() == "an ant"
    assert np.load(tmp_path / "old/tokens/train/00000001.npz")["input_ids"].tolist() == [4, 5]
    listed = json.loads((tmp_path / "old/train_data.json").read_text())
    assert [item["id"] for item in listed] == [record_id("a cat"), record_id("an ant")]
    assert listed[0]["text_path"] == "texts/train/00000000.txt"
    for options, more in (({}, ()), ({"tokens": tokens}, ("token_path",)), ({"with_latents": True}, ("latent_path",))):
        folder = tmp_path / f"with {more}"
        export_layout(folder, records, **options)
        (item,) = json.loads((folder / "validation_data.json").read_text())
        paths = {"text_path": "texts/validation/00000000.txt", "token_path": "tokens/validation/00000000.npz",
                 "latent_path": "latents/validation/00000000.npy"}  # fmt: skip
        kept = {name: path for name, path in paths.items() if name in ("text_path", *more)}
        assert item == {"id": record_id("a dog"), **kept, "source": "s", "meta": None}
        assert json.loads((folder / "test_data.json").read_text()) == []
        assert (folder / paths["token_path"]).exists() == ("token_path" in more)
    with pytest.raises(StoreError, match="as many rows of tokens as records, found 1 and 3"):
        export_layout(tmp_path / "x", records, tokens=stores(tmp_path / "one", rows[:1])[1])


def test_as_a_source_it_keeps_its_split(tmp_path: Path, ingested: Callable[..., Any]) -> None:
    rows = [("a cat", "train", [1], None), ("a dog", "validation", [3], '{"a": 1}'), ("an ant", "test", [4], None)]
    export_layout(tmp_path / "old", stores(tmp_path, rows)[0])
    out = ingested({"kind": "layout", "path": str(tmp_path / "old")})
    assert {row["text"]: row["split"] for row in out.rows} == {row[0]: row[1] for row in rows}
    assert {row["text"]: row["meta"] for row in out.rows} == {row[0]: row[3] for row in rows}


def test_a_folder_without_lists_is_read_by_name(tmp_path: Path, ingested: Callable[..., Any]) -> None:
    for name, text in {"train/b": "second", "train/a": "first", "valid/c": "held out"}.items():
        path = tmp_path / f"old/texts/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = ingested({"kind": "layout", "path": str(tmp_path / "old")})
    assert [(row["text"], row["split"]) for row in out.rows] == [
        ("first", "train"), ("second", "train"), ("held out", "validation"),
    ]  # fmt: skip


def test_a_missing_file_is_named(tmp_path: Path, ingested: Callable[..., Any]) -> None:
    rows = [("a cat", "train", [1], None), ("a dog", "train", [3], None)]
    export_layout(tmp_path / "old", stores(tmp_path, rows)[0])
    (tmp_path / "old/texts/train/00000000.txt").unlink()
    out = ingested({"kind": "layout", "path": str(tmp_path / "old")}, max_bad_fraction=0.5)
    (refused,) = out.quarantined
    assert (refused["reason"], refused["file"].endswith("texts/train/00000000.txt")) == ("missing_file", True)


def test_a_list_may_be_inside_an_object(tmp_path: Path) -> None:
    (tmp_path / "train_data.json").write_text(json.dumps({"data": [{"text": "one"}, {"text": "two"}], "version": 3}))
    assert [row.text for row in read(tmp_path)] == ["one", "two"]
    (tmp_path / "train_data.json").write_text(json.dumps({"rows": [{"text": "one"}]}))
    with pytest.raises(SourceError, match="expected a JSON list of objects, found dict"):
        read(tmp_path)


@pytest.mark.parametrize(("raw", "message"), [("{", "not readable as JSON"), ("[1]", "JSON list of objects")])
def test_a_broken_list_is_named(tmp_path: Path, raw: str, message: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/train_data.json").write_text(raw)
    with pytest.raises(SourceError, match=message):
        read(tmp_path / "old")


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found neither"):
        read(tmp_path)
    with pytest.raises(SourceError, match="does not exist"):
        read(tmp_path / "nothing")
