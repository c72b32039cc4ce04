"""Refusals of the store: what has no rows, no columns or no values of the right form is named with its place."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mm_ldlm.data.store.npy import map_npy

from mm_ldlm.core.errors import FingerprintError, MissingShardError, ShardSchemaError, StoreError
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, atomic, lock, shard_file, verified, write_shard
from mm_ldlm.data.store.fingerprint import fingerprint

SCHEMA = pa.schema([("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("name", pa.string())])


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    names = [None if row == 3 else f"n{row}" for row in range(rows)]
    writer.append({"row": list(range(rows)), "ids": [[row] * (row % 3) for row in range(rows)], "name": names})
    writer.finish()
    return ShardStore.open(path, "toy")


def stored(folder: Path, table: pa.Table) -> ShardStore:
    """A store of one shard whose manifest has the right checksum, whatever the table contains."""
    folder.mkdir(exist_ok=True)
    shard = write_shard(folder, "part-000000.arrow", table)
    Manifest(kind="toy", rows=shard.rows, shards=(shard,)).write(folder)
    return ShardStore.open(folder)


def test_rows_and_columns_that_a_store_lacks_are_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    with pytest.raises(StoreError, match=r"no column 'latent'; the store has row, ids, name\."):
        store.fixed("latent")
    for read in (store.iter_tables, lambda *, columns: [store.window(0, 2, columns=columns)]):
        with pytest.raises(StoreError, match=r"no column 'latent'; the store has row, ids, name\."):
            list(read(columns=["row", "latent"]))
        assert next(iter(read(columns=["name", "row"]))).schema.names == ["name", "row"]
    with pytest.raises(StoreError, match=r"expected a list of row numbers, found an array of shape \(2, 1\)"):
        store.rows([[1], [2]])
    for rows, bad in (([0, 9, 11], 9), ([4, -1], -1)):
        with pytest.raises(StoreError, match=rf"expected rows 0\.\.8, found row {bad}\."):
            store.ints("row").take(rows)
    assert store.ints("row")[[8, 0]].tolist() == [8, 0]
    assert store.strings("name")[[8, 3]] == ["n8", None]
    assert repr(store) == f"ShardStore({str(tmp_path)!r}, kind='toy', rows=9)"


def test_numbers_are_never_null_and_texts_may_be(tmp_path: Path) -> None:
    """A null has no value in a numpy array: it would be read as any number."""
    lists = pa.array([[1, 2], [3, None]], pa.list_(pa.int32()))
    vectors = pa.array([[1, 2], [None, 4]], pa.list_(pa.float32(), 2))
    for name, column in (("ids", lists), ("v", vectors), ("row", pa.array([1, None])), ("all", lists.take([0, None]))):
        store = stored(tmp_path / name, pa.table({name: column}))
        with pytest.raises(StoreError, match=f"expected no nulls in column '{name}', found 1"):
            store.table([0, 1])
    assert stored(tmp_path / "text", pa.table({"t": ["a", None]})).strings("t").take([1, 0]) == [None, "a"]


def test_a_shard_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "part-000000.arrow"
    with pytest.raises(MissingShardError, match="this shard is missing"):
        shard_file.read(path)
    path.write_bytes(b"no shard")
    with pytest.raises(StoreError, match=r"part-000000\.arrow: not a readable shard"):
        shard_file.read(path)
    twice = pa.table([[1], [2]], schema=pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    with pytest.raises(StoreError, match=r"two columns have one name \(a: int64, a: int64\)"):
        stored(tmp_path / "twice", twice).ints("a")
    with pytest.raises(StoreError, match="expected at least one row for a shard, found none"):
        write_shard(tmp_path, "part-000001.arrow", SCHEMA.empty_table())
    offsets = pa.py_buffer(np.array([0, 99, 1], np.int32))
    values = pa.array([1], pa.int32())
    damaged = pa.ListArray.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=[values])
    with pytest.raises(StoreError, match=r"column 'ids' is damaged .* Remove this shard\."):
        shard_file.validate(damaged, path=path, column="ids")


def test_the_manifest_has_the_rows_and_the_types_of_its_shards(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, "part-000000.arrow", pa.table({"a": [1, 2]}))
    Manifest(kind="toy", rows=1, shards=(type(shard)(**{**vars(shard), "rows": 1}),)).write(tmp_path)
    with pytest.raises(StoreError, match=r"part-000000\.arrow: expected 1 rows, found 2\."):
        ShardStore.open(tmp_path).ints("a").take([0])
    other = write_shard(tmp_path, "part-000001.arrow", pa.table({"a": [1.5]}))
    Manifest(kind="toy", rows=3, shards=(shard, other)).write(tmp_path)
    with pytest.raises(ShardSchemaError, match=r"part-000001\.arrow: expected .* a: int64, found a: double"):
        ShardStore.open(tmp_path).table([2])


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
def test_a_shard_is_a_file_of_the_folder_of_its_manifest(name: str, tmp_path: Path) -> None:
    build(tmp_path)
    plain = json.loads((tmp_path / "manifest.json").read_text())
    plain["shards"][0]["name"] = name
    (tmp_path / "manifest.json").write_text(json.dumps(plain))
    with pytest.raises(StoreError, match=r"is not a file of this folder"):
        Manifest.read(tmp_path)


def test_a_manifest_that_is_none_or_names_no_such_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest\.json: not readable as JSON .* run the pipeline again"):
        Manifest.read(tmp_path)
    manifest = Manifest(kind="tokens", rows=0, fingerprints={"records": "one"})
    with pytest.raises(FingerprintError, match=r"a tokens store made with tokenizer two, found tokenizer None\."):
        manifest.require(directory=tmp_path, records="one", tokenizer="two")


def test_the_numbers_of_a_manifest_are_numbers(tmp_path: Path) -> None:
    build(tmp_path, rows=1)
    whole = (tmp_path / "manifest.json").read_text()
    for wrong in (True, 1.0, "1", -1, 2**63, None):
        for key in ("rows", "bytes", None):
            plain = json.loads(whole)
            if key is None:
                plain["rows"] = wrong
            else:
                plain["shards"][0][key] = wrong
            (tmp_path / "manifest.json").write_text(json.dumps(plain))
            with pytest.raises(
                StoreError, match=r"expected (a number of at least 0|a text as kind and a number as rows)"
            ):
                Manifest.read(tmp_path)


def test_json_is_not_nested_without_end(tmp_path: Path) -> None:
    for opening, closing in (("[", "]"), ('{"a": ', "}")):
        for depth in (atomic.DEEPEST - 1, atomic.DEEPEST + 1, 10**5):
            (tmp_path / "x.json").write_text(f"{opening * depth}1{closing * depth}")
            if depth < atomic.DEEPEST:
                atomic.read_json(tmp_path / "x.json")
                continue
            with pytest.raises(ValueError, match="it is nested too deeply"):
                atomic.read_json(tmp_path / "x.json")


def test_a_value_without_a_form_has_no_fingerprint() -> None:
    with pytest.raises(TypeError, match="object has no canonical JSON form"):
        fingerprint({"a": [object()]})


def test_an_empty_array_is_mapped_in_its_shape_and_type(tmp_path: Path) -> None:
    for shape in ((0, 4), (3, 0)):
        np.save(tmp_path / "x.npy", np.empty(shape, np.float16))
        found = map_npy(tmp_path / "x.npy")
        assert (found.shape, found.dtype) == (shape, np.float16)
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert map_npy(tmp_path / "x.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_that_cannot_be_reached_is_named_before_it_is_hashed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match=r"loop: cannot be read \(.*\)\. Do this\."):
        verified.verify_file(tmp_path, "loop", sha256="", remedy="Do this.")


# -- locks -------------------------------------------------------------------------------------------------------------


def test_a_writer_whose_lock_is_taken_at_that_moment_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To share a lock, the system may give it to another writer first."""
    held = lock.take(tmp_path / "lock", "write")
    assert held is not None
    monkeypatch.setattr(lock, "try_lock", lambda *_: False)
    assert not held.share()
    monkeypatch.undo()
    assert lock.take(tmp_path / "lock", "write") is not None


def test_a_file_system_without_locks_excludes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        assert lock.take(tmp_path / "lock", "write") is not None
        assert lock.take(tmp_path / "lock", "write") is not None
    monkeypatch.setattr(lock, "fcntl", None)
    held = [lock.take(tmp_path / "lock", "write") for _ in range(2)]
    assert None not in held


def test_the_process_of_another_user_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, signal: int) -> None:
        raise ProcessLookupError if pid == 5 else PermissionError

    records = [{"pid": pid, "host": lock._host(), "since": "then", "command": f"c{pid}"} for pid in (7, 5)]
    (tmp_path / "lock").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    monkeypatch.setattr(os, "kill", refused)
    assert lock.holder(tmp_path / "lock") == "process 7, since then: c7"


def test_a_password_at_the_end_of_a_long_command_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letters in range(160, 200):
        monkeypatch.setattr("sys.argv", ["kedro", "x" * letters, "https://me:secretword@host/x"])
        assert "secret" not in lock._record("write")["command"], letters


def test_a_platform_without_flock_has_locks_that_exclude_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("lock_without_flock", lock.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fcntl is None
    held = [module.take(tmp_path / "lock", "write") for _ in range(2)]
    assert None not in held
    assert module.holder(tmp_path / "lock").startswith(f"process {os.getpid()}, since ")


def test_a_store_without_shards_has_the_columns_of_its_schema_file_or_none(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s", kind="toy", schema=SCHEMA)
    writer.finish()
    assert ShardStore.open(tmp_path / "s").schema == SCHEMA
    (tmp_path / "s/schema.arrow").unlink()
    bare = ShardStore.open(tmp_path / "s")
    assert (bare.schema.names, len(bare), bare.table([]).num_rows) == ([], 0, 0)
    with pytest.raises(StoreError, match=r"no column 'row'; the store has \."):
        bare.ints("row")
