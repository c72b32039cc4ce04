"""Export of latents in the older folder layout, as thousands of files or one archive, and their way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.corpus.record import record_id
from mm_ldlm.data.corpus.sources import SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.data.latents import store as latent_store
from mm_ldlm.data.latents.store import LatentStore
from mm_ldlm.data.store import StoreWriter
from mm_ldlm.extras.layout.export import export_latents, write_layout
from mm_ldlm.extras.layout.reading import Folder, paired, parse_tokens
from mm_ldlm.extras.layout.writing import export_layout

Build = Callable[..., Any]


@pytest.mark.parametrize("name", ["folder", "one.zip"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_source_reads_every_bit_that_the_export_writes(
    pristine: Any, tmp_path: Path, name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.layout.export._ROWS", 50)
    vectors = pristine.latents.take(slice(None)).astype(dtype)
    vectors[3, 5] = np.nan
    vectors[4] = -0.0
    ids = pristine.latents.ids(slice(None))
    writer = StoreWriter(tmp_path / "out", kind="latents", schema=latent_store.schema(24, dtype), shard_rows=60)
    writer.append(latent_store.table(ids, vectors, dtype=dtype))
    writer.finish()
    export_layout(tmp_path / name, pristine.records, tokens=pristine.tokens, with_latents=True)
    counts = export_latents(tmp_path / name, pristine.records, LatentStore.open(tmp_path / "out"))
    assert counts == Counter(pristine.records.strings("split").take(slice(None)))
    config = parse(SourceConfig, {"kind": "layout", "path": str(tmp_path / name), "latents": True}, at="s")
    found = {record_id(row.text): row.vector for row in open_source(config, seed=0, max_row_bytes=10**6).rows()}
    assert {identity: (each.dtype.name, each.tobytes()) for identity, each in found.items()} == {
        identity: (dtype, vector.tobytes()) for identity, vector in zip(ids, vectors, strict=True)
    }


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
        assert (
            parse_tokens(folder.read(paired(entry, "tokens"))).tolist()
            == full.encode([folder.read(entry.text_path).decode()])[0][:12]
        )
    assert [path.name for path in tmp_path.iterdir()] == [name]
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / name).rglob("*"))
    with pytest.raises(StoreError, match=r"expected a new or empty folder, .* Nothing was changed"):
        write_layout(tmp_path / name, pristine.records, tokenizer=full, latents=None)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / name).rglob("*"))


@pytest.mark.parametrize("name", ["new", "new.zip"])
def test_what_a_killed_export_left_is_no_part_of_the_next_one(pristine: Any, tmp_path: Path, name: str) -> None:
    left = tmp_path / (f".{name}.partial" if name == "new" else f".{name}.partial.zip")
    if name == "new":
        (left / "texts" / "train").mkdir(parents=True)
        (left / "texts" / "train" / "99999999.txt").write_text("left")
    else:
        left.write_text("left")
    full = load_tokenizer(TokenizerConfig(max_length=12))
    write_layout(tmp_path / name, pristine.records, tokenizer=full, latents=None)
    with Folder(tmp_path / name) as folder:
        names = folder.names()
        assert len([each for each in names if each.startswith("texts/")]) == 230
        assert not [each for each in names if each.startswith("latents/")]
    assert [path.name for path in tmp_path.iterdir()] == [name]


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
