"""The messages of stores, word for word: the path, what was expected, what was found and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mm_ldlm.core.errors import FingerprintError, ShardSchemaError, StoreError
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter, shard_file, shards, write_shard
from mm_ldlm.data.store.shard_file import REMEDY
from stand_ins import refused

SCHEMA = pa.schema([("row", pa.int64()), ("ids", pa.list_(pa.int32())), ("name", pa.string())])
AGAIN = "Write the store again."


def build(path: Path, rows: int = 9) -> ShardStore:
    writer = StoreWriter(path, kind="toy", schema=SCHEMA, shard_rows=4)
    ids = [[row] * (row % 3) for row in range(rows)]
    writer.append({"row": list(range(rows)), "ids": ids, "name": [f"n{row}" for row in range(rows)]})
    writer.finish()
    return ShardStore.open(path, "toy")


# -- manifests ---------------------------------------------------------------------------------------------------------


def test_a_manifest_that_is_wrong_is_told_by_its_first_wrong_field(tmp_path: Path) -> None:
    build(tmp_path)
    path = tmp_path / "manifest.json"
    whole = json.loads(path.read_text())

    def found(change: Any) -> str:
        plain = json.loads(json.dumps(whole))
        change(plain)
        path.write_text(json.dumps(plain))
        return refused(StoreError, lambda: Manifest.read(tmp_path)).removeprefix(f"{path}: ")

    long = "x" * 99
    for change, words in (
        (lambda m: m.update(format_version=2), f"expected format version 1, found 2. {AGAIN}"),
        (lambda m: m.update(format_version=0), f"expected format version 1, found 0. {AGAIN}"),
        (lambda m: m.pop("format_version"), f"expected format version 1, found None. {AGAIN}"),
        (lambda m: m["shards"][1].update(rows=-7), f"expected a number of at least 0 as rows, found -7. {AGAIN}"),
        (lambda m: m["shards"][2].update(bytes=long),
         f"expected a number of at least 0 as bytes, found {repr(long)[:60]}. {AGAIN}"),
        (lambda m: m["shards"][2].update(sha256=5), f"expected a text as sha256, found 5. {AGAIN}"),
        (lambda m: m["shards"][0].update(name=None), f"expected a text as name, found None. {AGAIN}"),
        (lambda m: m.update(kind=[3]), f"expected a text as kind and a number as rows, found [3] and 9. {AGAIN}"),
        (lambda m: m.update(rows="9"), f"expected a text as kind and a number as rows, found 'toy' and '9'. {AGAIN}"),
        *((lambda m, name=name, value=value: m.update({name: value}),
           f"expected mappings under 'fingerprints' and 'meta'. {AGAIN}")
          for name in ("fingerprints", "meta") for value in (["x"], None, "x")),
        (lambda m: m.update(fingerprints={"a": "1", "b": 2, "c": 3}),
         f"expected texts under 'fingerprints', found 2. {AGAIN}"),
        (lambda m: m["shards"][1].update(name="a/b"), f"shard 'a/b' is not a file of this folder. {AGAIN}"),
        (lambda m: [shard.update(name="x") for shard in m["shards"]],
         "expected 3 shards, found 1: some are named twice."),
        (lambda m: m.update(rows=7), f"expected 7 rows, found 9 in the shards. {AGAIN}"),
    ):  # fmt: skip
        assert found(change) == words
    for change in (lambda m: m.pop("kind"), lambda m: m.pop("shards"), lambda m: m.update(more=1),
                   lambda m: m["shards"][0].update(more=1), lambda m: m["shards"][0].pop("rows")):  # fmt: skip
        assert re.fullmatch(rf"a field is missing or unknown \(.+\)\. {AGAIN}", found(change))


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused(StoreError, lambda: Manifest.read(tmp_path / "x")) == (
        f"{tmp_path / 'x'}: no manifest.json, so the store is not finished. Run the pipeline that writes it; existing "
        "shards are kept."
    )
    (tmp_path / "file").write_text("")
    assert refused(StoreError, lambda: Manifest.read(tmp_path / "file")) == (
        f"{tmp_path / 'file'}/manifest.json: cannot be read (Not a directory). Correct the path of the store."
    )
    path = tmp_path / "manifest.json"
    for raw in (b"{", b"\xff", b"[" * 200 + b"]" * 200):
        path.write_bytes(raw)
        message = refused(StoreError, lambda: Manifest.read(tmp_path))
        assert message.startswith(f"{path}: not readable as JSON (")
        assert message.endswith("). Remove it and run the pipeline again.")


def test_another_input_of_a_store_is_named_with_both_fingerprints() -> None:
    manifest = Manifest(kind="latents", rows=0, fingerprints={"encoder": "one", "records": "two"})
    manifest.require(directory="d", encoder="one", records="two")
    manifest.require(directory="d")
    assert refused(FingerprintError, lambda: manifest.require(directory="d", records="two", encoder="three")) == (
        "d: expected a latents store made with encoder three, found encoder one. Use the encoder that the store was "
        "made with, or remove the directory and run the pipeline again."
    )


# -- shards ------------------------------------------------------------------------------------------------------------


def test_shards_that_are_wrong_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    for number in (0, 2):
        path = tmp_path / f"part-{number:06d}.arrow"
        path.write_bytes(path.read_bytes()[:-1] + b"X")
    names = "part-000000.arrow, part-000002.arrow"
    assert store.damaged_shards() == names.split(", ")
    assert refused(StoreError, store.verify) == (
        f"{tmp_path}: checksum differs in {names} (2 of 3 shards): the bytes on disk changed after they were written. "
        f"Remove these shards. {REMEDY}"
    )
    assert refused(StoreError, lambda: ShardStore.open(tmp_path).ints("row")) == (
        f"{tmp_path / 'part-000000.arrow'}: checksum differs: the bytes on disk changed after they were written. "
        f"Remove this file. {REMEDY}"
    )
    for number in range(3):
        (tmp_path / f"part-{number:06d}.arrow").write_bytes(b"x" * 9_999)
    size = store.manifest.shards[0].bytes
    assert refused(StoreError, store.check_files) == (
        f"{tmp_path / 'part-000000.arrow'}: expected {size} bytes, found 9999 (2 more shards are wrong). {REMEDY}"
    )
    (tmp_path / "part-000000.arrow").unlink()
    (tmp_path / "part-000000.arrow").mkdir()
    assert refused(StoreError, store.check_files) == (
        f"{tmp_path / 'part-000000.arrow'}: expected a shard, but it is a folder. Remove it. {REMEDY}"
    )
    Manifest(kind="toy", rows=0).write(tmp_path)
    assert refused(StoreError, lambda: ShardStore.open(tmp_path)) == (
        f"{tmp_path}: expected the shards of this folder in its manifest, found a manifest of no shards and 3 shards, "
        f"the first of them part-000000.arrow. {REMEDY}"
    )


def test_a_link_to_a_shard_stays_in_its_folder(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    path = tmp_path / "s/part-000001.arrow"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    message = refused(StoreError, lambda: ShardStore.open(tmp_path / "s"))
    assert message.startswith(
        f"{path}: this shard cannot be read ({tmp_path / 's'}: expected the name of a file inside"
    )
    assert message.endswith(f"). {REMEDY}")
    path.unlink()
    path.symlink_to(path.name)
    assert refused(StoreError, store.check_files).startswith(f"{path}: this shard cannot be read (")


def test_shards_of_other_columns_or_rows_are_told_with_both(tmp_path: Path) -> None:
    one = write_shard(tmp_path, "a", pa.table({"a": [1, 2], "b": ["x", "y"]}))
    two = write_shard(tmp_path, "b", pa.table({"a": [1, 2], "b": [1.5, 2.5]}))
    Manifest(kind="toy", rows=4, shards=(one, two)).write(tmp_path)
    store = ShardStore.open(tmp_path)
    assert refused(ShardSchemaError, lambda: store.table([3])) == (
        f"{tmp_path / 'b'}: expected the columns of the first shard, a: int64, b: string, found a: int64, b: double. "
        f"Remove the wrong shard. {REMEDY}"
    )
    fewer = type(one)(name="a", rows=1, bytes=one.bytes, sha256=one.sha256)
    Manifest(kind="toy", rows=1, shards=(fewer,)).write(tmp_path)
    assert (
        refused(StoreError, lambda: ShardStore.open(tmp_path).table([0]))
        == f"{tmp_path / 'a'}: expected 1 rows, found 2. {REMEDY}"
    )


def test_columns_of_another_type_and_rows_that_are_none_are_named(tmp_path: Path) -> None:
    store = build(tmp_path)
    own = "Open the store as its own kind, or write it again."
    for reader, name, wanted in ((store.ints, "ids", "numbers"), (store.fixed, "ids", "a fixed-size list"),
                                 (store.lists, "row", "a list"), (store.strings, "row", "texts")):  # fmt: skip
        assert refused(StoreError, lambda reader=reader, name=name: reader(name)) == (
            f"{tmp_path}: expected {wanted} in column '{name}', found {SCHEMA.field(name).type}. {own}"
        )
    assert refused(StoreError, lambda: store.lists("ids").padded([0, 1, 2, 5], pad=0, length=1)) == (
        f"{tmp_path}: expected at most 1 items per row of 'ids', found 2. Give a larger length."
    )
    for rows, shape in ((5, "()"), ([[1, 2]], "(1, 2)")):
        assert refused(StoreError, lambda rows=rows: store.rows(rows)) == (
            f"expected a list of row numbers, found an array of shape {shape}."
        )
    assert (
        refused(StoreError, lambda: store.ints("none"))
        == f"{tmp_path}: no column 'none'; the store has row, ids, name."
    )


def test_one_column_may_be_read_in_the_form_of_each_type_that_fits(tmp_path: Path) -> None:
    """Readers are kept by their name and their form."""
    half, wide = pa.array([0.5, -2.0], pa.float16()), pa.array([[1], [2, 3]], pa.large_list(pa.int16()))
    text = pa.array(["a", "é"], pa.large_string())
    table = pa.table({"h": half, "w": wide, "t": text, "d": pa.array([0.1, 0.2], pa.float64())})
    shard = write_shard(tmp_path, "a", table)
    Manifest(kind="toy", rows=2, shards=(shard,)).write(tmp_path)
    store = ShardStore.open(tmp_path)
    assert (store.ints("h").take([1, 0]).tolist(), store.ints("h").take([0]).dtype) == ([-2.0, 0.5], np.float16)
    assert (store.ints("d").take([1]).tolist(), store.ints("d").take([1]).dtype) == ([0.2], np.float64)
    values, offsets = store.lists("w").take([1, 0])
    assert (values.tolist(), values.dtype, offsets.tolist()) == ([2, 3, 1], np.int16, [0, 2, 3])
    assert store.strings("t").take([1, 0]) == ["é", "a"]
    assert store.ints("h") is store.ints("h")
    for form in ("fixed", "strings", "lists"):
        with pytest.raises(StoreError, match="in column 'h', found halffloat"):
            getattr(store, form)("h")


def test_padding_and_lengths_of_rows(tmp_path: Path) -> None:
    lists = build(tmp_path).lists("ids")
    assert lists.padded([5, 0, 7], pad=-3).tolist() == [[5, 5], [-3, -3], [7, -3]]
    assert lists.padded([0, 3], pad=-3, length=2).tolist() == [[-3, -3], [-3, -3]]
    assert lists.padded([], pad=-3).shape == (0, 0)
    assert (lists.lengths([8, 1, 3]).tolist(), lists.lengths([8]).dtype) == ([2, 1, 0], np.int64)


def test_pages_are_released_beyond_the_limit_and_counted_for_the_shard_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "RESIDENT_BYTES", 1)
    store = build(tmp_path)
    sizes = [shard.bytes for shard in store.manifest.shards]
    store.array(0, "row", touched=None)
    assert (store._touched, store._resident) == ({0: sizes[0]}, sizes[0])
    store.array(1, "row", touched=None)
    assert (store._touched, store._resident) == ({1: sizes[1]}, sizes[1])
    store.array(1, "row", touched=10**9)
    assert (store._touched, store._resident) == ({1: sizes[1]}, sizes[1])


# -- damaged shards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [pa.ArrowInvalid, OSError, MemoryError, OverflowError, UnicodeError])
def test_whatever_a_damaged_shard_raises_names_it(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "part-000000.arrow"
    write_shard(tmp_path, path.name, pa.table({"a": [1]}))

    def damaged(_: Any) -> Any:
        raise error("why")

    monkeypatch.setattr(shard_file.pa.ipc, "open_file", damaged)
    assert (
        refused(StoreError, lambda: shard_file.read(path)) == f"{path}: not a readable shard (why). Remove it. {REMEDY}"
    )


def test_a_batch_whose_columns_are_shorter_than_it_is_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "part-000000.arrow"
    write_shard(tmp_path, path.name, pa.table({"a": [1]}))
    checked: list[str] = []

    def validate() -> None:
        checked.append("batch")
        raise pa.ArrowInvalid("short")

    batch = SimpleNamespace(validate=validate, schema=SCHEMA)
    reader = SimpleNamespace(num_record_batches=1, get_batch=lambda number: batch if number == 0 else None)
    monkeypatch.setattr(shard_file.pa.ipc, "open_file", lambda _: reader)
    assert (
        refused(StoreError, lambda: shard_file.read(path))
        == f"{path}: not a readable shard (short). Remove it. {REMEDY}"
    )
    assert checked == ["batch"]
    reader.num_record_batches = 4
    assert refused(StoreError, lambda: shard_file.read(path)) == f"{path}: expected one record batch, found 4. {REMEDY}"
