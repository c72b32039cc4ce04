from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_ldlm.corpus.layout import Folder
from mm_ldlm.corpus.layout_stores import export_layout, import_layout
from mm_ldlm.corpus.record import RECORD_SCHEMA, record_id
from mm_ldlm.corpus.splits import SPLITS
from mm_ldlm.corpus.tokens import TOKEN_SCHEMA
from mm_ldlm.errors import SourceError
from mm_ldlm.store import ShardStore, StoreWriter

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


def by_id(store: ShardStore) -> dict[str, Any]:
    return {row["id"]: row for row in store.take(slice(None)).to_pylist()}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, packed=st.booleans())
def test_both_directions_lose_nothing(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], packed: bool) -> None:
    folder = tmp_path_factory.mktemp("layout")
    records, tokens = stores(folder, rows)
    place = folder / ("layout.zip" if packed else "layout")
    counts = export_layout(place, records, tokens=tokens)
    assert sum(counts.values()) == len(rows)
    import_layout(place, records=folder / "records2", tokens=folder / "tokens2")
    again, tokens_again = ShardStore.open(folder / "records2", "records"), ShardStore.open(folder / "tokens2", "tokens")
    assert by_id(again) == by_id(records)
    assert by_id(tokens_again) == by_id(tokens)
    assert tokens_again.strings("id").take(slice(None)) == again.strings("id").take(slice(None))
    export_layout(folder / "second", again, tokens=tokens_again)
    with Folder(place) as one, Folder(folder / "second") as two:
        assert one.names() == two.names()
        for name in one.names():
            if not name.endswith(".npz"):  # its zip directory holds the time
                assert one.read(name) == two.read(name)


def test_the_files_are_where_the_older_programs_look(tmp_path: Path) -> None:
    rows = [("a cat", "train", [1, 2], None), ("a dog", "validation", [3], None), ("an ant", "train", [4, 5], None)]
    records, tokens = stores(tmp_path, rows)
    assert export_layout(tmp_path / "old", records, tokens=tokens) == {"train": 2, "validation": 1, "test": 0}
    assert (tmp_path / "old/texts/train/00000001.txt").read_text() == "an ant"
    assert np.load(tmp_path / "old/tokens/train/00000001.npz")["input_ids"].tolist() == [4, 5]
    listed = json.loads((tmp_path / "old/train_data.json").read_text())
    assert [item["id"] for item in listed] == [record_id("a cat"), record_id("an ant")]
    assert listed[0]["text_path"] == "texts/train/00000000.txt"


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


def test_missing_and_swapped_files_are_named(tmp_path: Path, ingested: Callable[..., Any]) -> None:
    rows = [("a cat", "train", [1], None), ("a dog", "train", [3], None)]
    old = tmp_path / "old"
    export_layout(old, *stores(tmp_path, rows)[:1], tokens=stores(tmp_path, rows)[1])
    (old / "tokens/train/00000001.npz").write_bytes(b"junk")
    with pytest.raises(SourceError, match=r"00000001.npz: no array 'input_ids'"):
        import_layout(old, records=tmp_path / "r", tokens=tmp_path / "t")
    one, two = old / "texts/train/00000000.txt", old / "texts/train/00000001.txt"
    (one_text, two_text) = one.read_text(), two.read_text()
    one.write_text(two_text)
    two.write_text(one_text)
    with pytest.raises(SourceError, match="The files were swapped or changed"):
        import_layout(old, records=tmp_path / "r")
    one.unlink()
    with pytest.raises(SourceError, match=r"00000000.txt is in the train list, but does not exist"):
        import_layout(old, records=tmp_path / "r")
    out = ingested({"kind": "layout", "path": str(old)}, max_bad_fraction=0.5)
    assert [row["reason"] for row in out.quarantined] == ["missing_file"]


@pytest.mark.parametrize(("raw", "message"), [("{", "not readable as JSON"), ("[1]", "JSON list of objects")])
def test_a_broken_list_is_named(tmp_path: Path, raw: str, message: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/train_data.json").write_text(raw)
    with pytest.raises(SourceError, match=message):
        import_layout(tmp_path / "old", records=tmp_path / "r")


def test_a_folder_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found neither"):
        import_layout(tmp_path, records=tmp_path / "r")
    with pytest.raises(SourceError, match="does not exist"):
        import_layout(tmp_path / "nothing", records=tmp_path / "r")
