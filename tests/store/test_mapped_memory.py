"""Which mapped pages a store releases, which numbers are written when, and files that are read without a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.store.npy import map_npy

from mm_ldlm.data.store import ShardStore, StoreWriter, atomic, shards

SCHEMA = pa.schema([("v", pa.list_(pa.float32(), 2))])


def rows(count: int) -> pa.Table:
    flat = pa.array(np.repeat(np.arange(count), 2), pa.float32())
    return pa.Table.from_arrays([pa.FixedSizeListArray.from_arrays(flat, 2)], schema=SCHEMA)


def test_the_shard_that_is_read_is_not_released_and_one_alone_never_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StoreWriter(tmp_path, kind="toy", schema=SCHEMA, shard_rows=4)
    writer.append(rows(8))
    writer.finish()
    store, dropped = ShardStore.open(tmp_path), []
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 1)
    monkeypatch.setattr(shards, "_drop_pages", lambda address, length: dropped.append(address) or True)
    column = store.fixed("v")
    for _ in range(3):
        column.shard(0)
    assert dropped == []
    column.shard(1)
    assert dropped == [store._spans[0][0]]
    assert set(store._touched) == {1}


def test_a_shard_is_written_as_soon_as_it_is_full(tmp_path: Path) -> None:
    """Rows that wait are held in memory."""
    writer = StoreWriter(tmp_path, kind="toy", schema=SCHEMA, shard_rows=3)
    for count, there in ((2, 0), (1, 1), (6, 3), (1, 3)):
        writer.append(rows(count))
        assert len(list(tmp_path.glob("part-*.arrow"))) == there
    assert [shard.rows for shard in writer.finish().shards] == [3, 3, 3, 1]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 3)])
def test_an_array_without_numbers_is_mapped_as_well(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(shape, np.float16))
    found = map_npy(tmp_path / "a.npy")
    assert (found.shape, found.dtype) == (shape, np.float16)
    assert found.sum() == np.prod(shape)


def test_json_is_written_for_readers(tmp_path: Path) -> None:
    value: dict[str, Any] = {"b": "café …", "a": [1]}
    atomic.write_json(tmp_path / "a.json", value)
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "b": "café …",\n  "a": [\n    1\n  ]\n}\n'
