"""Import and export of the older folder layout, as thousands of files or one archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.corpus.layout import Folder, read_tokens
from mm_ldlm.corpus.layout_stores import export_layout, import_layout
from mm_ldlm.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.errors import StoreError
from mm_ldlm.latents import store as latent_store
from mm_ldlm.latents.layout import export_latents, import_latents, write_layout
from mm_ldlm.latents.store import LatentStore
from mm_ldlm.store import ShardStore, StoreWriter

Build = Callable[..., Any]


@pytest.mark.parametrize("name", ["folder", "one.zip"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_export_and_import_keep_every_bit(pristine: Any, tmp_path: Path, name: str, dtype: Any) -> None:
    vectors = pristine.latents.take(slice(None)).astype(dtype)
    vectors[3, 5] = np.nan
    vectors[4] = -0.0
    ids = pristine.latents.ids(slice(None))
    writer = StoreWriter(tmp_path / "out", kind="latents", schema=latent_store.schema(24, dtype), shard_rows=60)
    writer.append(latent_store.table(ids, vectors, dtype=dtype))
    writer.finish()
    export_layout(tmp_path / name, pristine.records, tokens=pristine.tokens, with_latents=True)
    counts = export_latents(tmp_path / name, pristine.records, LatentStore.open(tmp_path / "out"))
    assert sum(counts.values()) == len(ids)
    import_layout(tmp_path / name, records=tmp_path / "records")
    records = ShardStore.open(tmp_path / "records")
    import_latents(tmp_path / name, records, encoder=pristine.encoder, workspace=tmp_path / "in").write(tmp_path / "in")
    found = LatentStore.open(tmp_path / "in")
    assert found.ids(slice(None)) == records.strings("id").take(slice(None))
    order = {identity: row for row, identity in enumerate(ids)}
    expected = vectors[[order[identity] for identity in found.ids(slice(None))]]
    assert found.fixed("latent").take(slice(None)).tobytes() == expected.tobytes()


@pytest.fixture
def layout(pristine: Any, tmp_path: Path) -> Path:
    export_layout(tmp_path / "layout", pristine.records, with_latents=True)
    export_latents(tmp_path / "layout", pristine.records, pristine.latents)
    return tmp_path / "layout"


def bring(pristine: Any, layout: Path) -> None:
    import_latents(layout, pristine.records, encoder=pristine.encoder, workspace=layout.parent / "in")


def test_pitfall_14_a_missing_latent_is_an_error_not_zeros(pristine: Any, layout: Path) -> None:
    (layout / "latents" / "train" / "00000007.npy").unlink()
    identity = json.loads((layout / "train_data.json").read_text())[7]["id"]
    with pytest.raises(StoreError, match=f"no latent for record {identity} .*A missing latent is not replaced"):
        bring(pristine, layout)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(23, np.float32), "expected float32 of dimension 24 .*found float32 of dimension 23"),
        (np.zeros(24, np.float64), "found float64 of dimension 24"),
        (np.zeros((2, 12), np.float32), r"shape \(2, 12\)"),
        (b"not an array", r"not a readable \.npy array"),
        (np.array([{"a": 1}], object), r"not a readable \.npy array"),
    ],
)
def test_a_strange_file_is_named(pristine: Any, layout: Path, content: Any, message: str) -> None:
    path = layout / "latents" / "train" / "00000003.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(StoreError, match=message):
        bring(pristine, layout)


def test_without_lists_rows_are_found_by_their_numbers(pristine: Any, layout: Path) -> None:
    for path in layout.glob("*_data.json"):
        path.unlink()
    bring(pristine, layout)
    found = LatentStore.open(layout.parent / "in")
    np.testing.assert_array_equal(found.take(slice(None)), pristine.latents.take(slice(None)))


def test_stores_that_do_not_belong_together_are_not_written(pristine: Any, new_data: Build, tmp_path: Path) -> None:
    other = new_data(rows=60)
    with pytest.raises(StoreError, match="found 60 and 230"):
        export_latents(tmp_path / "x", pristine.records, other.latents)


@pytest.mark.parametrize("name", ["new", "new.zip"])
def test_the_whole_layout_appears_at_once_and_nothing_is_overwritten(pristine: Any, tmp_path: Path, name: str) -> None:
    """Its tokens are those of the whole vocabulary, with which it can be read again."""
    full = load_tokenizer(TokenizerConfig(max_length=12))
    counts = write_layout(tmp_path / name, pristine.records, tokenizer=full, latents=pristine.latents)
    assert sum(counts.values()) == len(pristine.records)
    with Folder(tmp_path / name) as folder:
        entry = next(iter(folder.entries()))
        assert read_tokens(folder, entry).tolist() == full.encode([folder.read(entry.text_path).decode()])[0][:12]
    assert [path.name for path in tmp_path.iterdir()] == [name]
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / name).rglob("*"))
    with pytest.raises(StoreError, match=r"expected a new or empty folder, .* Nothing was changed"):
        write_layout(tmp_path / name, pristine.records, tokenizer=full, latents=None)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / name).rglob("*"))


def test_an_export_that_fails_leaves_nothing_behind(pristine: Any, new_data: Build, tmp_path: Path) -> None:
    full = load_tokenizer(TokenizerConfig(max_length=12))
    with pytest.raises(StoreError, match="the latents belong to other records"):
        write_layout(tmp_path / "x", pristine.records, tokenizer=full, latents=new_data(rows=60).latents)

    class Broken(LatentStore):
        def ids(self, rows: Any) -> list[str]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_layout(tmp_path / "x", pristine.records, tokenizer=full, latents=Broken.open(pristine.latents.directory))
    assert not [path for path in tmp_path.iterdir() if "x" in path.name]
