"""What an ingestion leaves in its folders, and what a second run with other settings makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import SourceError
from mm_ldlm.data.corpus import ingestion
from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.quarantine import QUARANTINE_SCHEMA
from mm_ldlm.data.corpus.record import RECORD_SCHEMA
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources.base import Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.engines.local import LocalEngineConfig
from mm_ldlm.data.store import Manifest, ShardStore, write_shard
from mm_ldlm.extras.own_vectors.store import KIND, VectorStore, vector_table


def text_source(path: Path, content: bytes, **keys: Any) -> dict[str, Any]:
    path.write_bytes(content)
    return {"kind": "text", "path": str(path), **keys}


def files(folder: Path) -> set[str]:
    """The files of a folder, without the record of the checksums that were compared."""
    return {path.name for path in folder.iterdir()} - {".verified"}


def test_a_finished_store_is_checked_against_the_limit_of_this_run(ingest_into: Any, tmp_path: Path) -> None:
    """The largest fraction of damaged rows is no part of the fingerprint, so that nothing is read again."""
    source = text_source(tmp_path / "a.txt", b"good\n\xff\nfine\n")
    assert ingest_into(tmp_path / "out", source, max_bad_fraction=0.5).report["damaged"] == 1
    with pytest.raises(SourceError, match=r"1 of 3 rows are damaged \(33\.3 %\), but .* is 1\.0 %"):
        ingest_into(tmp_path / "out", source)
    again = ingest_into(tmp_path / "out", source, max_bad_fraction=0.4)
    assert (again.report["resumed_after_rows"], again.texts) == (3, ["good", "fine"])


def test_both_manifests_as_a_whole(ingest_into: Any, tmp_path: Path) -> None:
    content = b"one\ntwo\n\xffbad\nthree\none\nfar too long\n\xfealso bad\nNUL \x00\nfour\n"
    source = text_source(tmp_path / "a.txt", content, split="test")
    found = ingest_into(tmp_path / "out", source, max_bad_fraction=1, length={"max_characters": 9}, shard_rows=3)
    records, refused = found.records.manifest, found.quarantine.manifest
    assert (records.kind, records.rows, [shard.rows for shard in records.shards]) == ("records", 4, [3, 1])
    assert (refused.kind, refused.rows, sum(shard.rows for shard in refused.shards)) == ("quarantine", 4, 4)
    assert records.meta == {"columns": RECORD_SCHEMA.names, "splits": {"train": 0, "validation": 0, "test": 4}}
    reasons = {"encoding": 2, "nul": 1, "too_long": 1}
    assert refused.meta == {"columns": QUARANTINE_SCHEMA.names, "reasons": reasons}
    assert list(refused.meta["reasons"]) == sorted(reasons)
    assert records.fingerprints == refused.fingerprints
    assert set(records.fingerprints) == {"parameters", "sources", "token_limits"}
    assert found.report["fingerprint"] == records.fingerprint
    assert found.quarantine.schema == QUARANTINE_SCHEMA
    assert found.records.schema == RECORD_SCHEMA


def test_the_folders_have_the_files_of_the_last_run_alone(ingest_into: Any, tmp_path: Path) -> None:
    """An empty quarantine has the columns of a full one; nothing of killed writers and earlier runs stays."""
    records, quarantine = tmp_path / "out/records", tmp_path / "out/quarantine"
    own = {"manifest.json", "progress.json", "sources.json"}
    for content, shards, refused in ((b"one\ntwo\nthree\n", 2, 0), (b"one\n\xff\n\xfe\n\xfd\n", 1, 1),
                                     (b"four\n", 1, 0)):  # fmt: skip
        found = ingest_into(
            tmp_path / "out", text_source(tmp_path / "a.txt", content), shard_rows=2, max_bad_fraction=1
        )
        parts = {f"part-{number:06d}.arrow" for number in range(shards)}
        assert files(records) == own | parts
        stored = {f"part-{number:06d}.arrow" for number in range(refused)} or {"schema.arrow"}
        assert files(quarantine) == {"manifest.json"} | stored
        assert ShardStore.open(quarantine, "quarantine").schema == QUARANTINE_SCHEMA
        assert len(found.quarantine) == found.report["quarantined"]
        for folder in (records, quarantine):
            (folder / ".tmp-1a-left").write_text("half")
            (folder / "part-000009.arrow").write_text("left")


def test_vectors_of_an_earlier_run_are_gone_before_new_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their manifest would show the folder as finished while it is filled."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    old = [write_shard(folder, f"part-{n:06d}.arrow", vector_table(["x"], [np.ones(2, np.float32)], dim=2))
           for n in range(3)]  # fmt: skip
    Manifest(kind=KIND, rows=3, shards=tuple(old)).write(folder)
    np.save(tmp_path / "a.npy", np.arange(4.0).reshape(2, 2))
    source = text_source(tmp_path / "a.txt", b"one\ntwo\n", vectors="beside")
    seen, real = [], ingestion._run

    def run(*given: Any) -> None:
        seen.append(files(folder))
        real(*given)

    monkeypatch.setattr(ingestion, "_run", run)
    config = parse(IngestionConfig, {"sources": [source], "progress": False}, at="ingestion")
    store = VectorStore(2, folder)
    records, _, _ = ingestion.ingest(config, seed=0, workspace=tmp_path / "r", quarantine=tmp_path / "q", vectors=store)
    assert seen == [set()]
    assert files(folder) == {"manifest.json", "part-000000.arrow"}
    found = Manifest.read(folder)
    assert (found.kind, found.rows, found.fingerprints) == ("vectors", 2, {"records": records.fingerprint})
    assert found.meta == {"columns": ["id", "vector"], "dim": 2}
    assert set(records.fingerprints) == {"parameters", "sources", "token_limits", "vectors"}


def test_the_code_of_the_language_filter_is_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[Any] = []

    def describe(dotted: str | None) -> Any:
        described.append(dotted)
        return {"name": dotted, "source": str(len(described))}

    monkeypatch.setattr(ingestion, "describe_language_filter", describe)
    config = IngestionConfig(sources=(SourceConfig(kind="starter"),), language_filter="package.module:keep")
    marks = {ingestion._fingerprints(config, [], None, None)["parameters"] for _ in range(2)}
    assert (len(marks), described) == (2, ["package.module:keep"] * 2)


@pytest.mark.parametrize("here", [True, False])
def test_signatures_are_made_beforehand_only_where_an_engine_tests_rows_elsewhere(
    here: bool, ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process they are made for the rows that need one."""
    seen: list[Any] = []

    def tests(*given: Any, **named: Any) -> RowTests:
        seen.append((given[1:], named))
        return RowTests(*given, **named)

    monkeypatch.setattr(ingestion, "RowTests", tests)
    monkeypatch.setattr(LocalEngineConfig, "here", property(lambda _: here))
    ingest_into(tmp_path / "out", text_source(tmp_path / "a.txt", b"one\n"), near_duplicates={})
    assert seen == [((None, None, None), {"with_signatures": not here})]


def test_a_run_reads_no_more_rows_at_once_than_a_shard_has(
    ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks: list[int] = []
    real = RowTests.__call__

    def counted(self: RowTests, chunk: Any) -> Any:
        chunks.append(len(chunk))
        return real(self, chunk)

    monkeypatch.setattr(RowTests, "__call__", counted)
    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 5)
    source = text_source(tmp_path / "a.txt", b"".join(b"%d\n" % number for number in range(12)))
    for most, expected in ((3, [3, 3, 3, 3]), (5, [5, 5, 2]), (9, [5, 5, 2])):
        chunks.clear()
        ingest_into(tmp_path / f"out{most}", source, shard_rows=most)
        assert chunks == expected


def test_another_number_of_rows_is_no_other_source(ingest_into: Any, tmp_path: Path) -> None:
    """The records are made again, and no permission to replace them is needed."""
    source = text_source(tmp_path / "a.txt", b"one\ntwo\nthree\n")
    first = ingest_into(tmp_path / "out", source)
    assert first.texts == ["one", "two", "three"]
    fewer = ingest_into(tmp_path / "out", {**source, "max_samples": 2})
    assert fewer.texts == ["one", "two"]
    assert first.manifest.fingerprints["sources"] == fewer.manifest.fingerprints["sources"]


def test_shards_of_the_quarantine_and_of_vectors_are_bounded_like_those_of_the_records(
    ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = text_source(tmp_path / "a.txt", b"one\n" + b"\xff\n" * 7 + b"two\n")
    found = ingest_into(tmp_path / "out", bad, shard_rows=3, max_bad_fraction=1)
    assert [shard.rows for shard in found.quarantine.manifest.shards] == [5, 2]
    assert [shard.rows for shard in found.records.manifest.shards] == [1, 1]
    np.save(tmp_path / "b.npy", np.arange(10.0).reshape(5, 2))
    source = text_source(tmp_path / "b.txt", b"a\nb\nc\nd\ne\n", vectors="beside")
    for most, largest, sizes in ((2, 1 << 28, [2, 2, 1]), (4, 8 * 3 + 7, [3, 2]), (9, 8 * 3, [3, 2])):
        monkeypatch.setattr("mm_ldlm.extras.own_vectors.store._SHARD_BYTES", largest)
        config = parse(IngestionConfig, {"sources": [source], "progress": False, "shard_rows": most}, at="ingestion")
        folder = tmp_path / f"{most}"
        store = VectorStore(2, folder / "v")
        records, _, _ = ingestion.ingest(config, seed=0, workspace=folder / "r", quarantine=folder / "q", vectors=store)
        assert [shard.rows for shard in records.shards] == sizes
        assert [shard.rows for shard in Manifest.read(folder / "v").shards] == sizes


def test_an_interrupted_run_knows_the_images_that_it_accepted(tmp_path: Path) -> None:
    """By their pixels and not by their texts: an image stays in its split, and a text without it is another text."""
    config = IngestionConfig(sources=(SourceConfig(kind="starter"),))
    image = {"image": "i", "meta": '{"image": {"digest": "i"}}'}
    first, again = (Cleaner(config, Counts.empty(1)) for _ in range(2))
    tests = RowTests(config)
    first.clean(tests([(0, Row("one", "f", 1, split="test", **image))]))  # type: ignore[arg-type]
    shard = write_shard(tmp_path, "part-000000.arrow", first.take_tables()[0])
    again.restore(ShardStore(tmp_path, Manifest(kind="records", rows=1, shards=(shard,))))
    rows = [Row("two", "f", 2, split="train", **image), Row("ONE", "f", 3, split="train"),  # type: ignore[arg-type]
            Row("one", "f", 4, split="test", **image)]  # type: ignore[arg-type]  # fmt: skip
    for cleaner in (first, again):
        cleaner.clean(tests([(0, row) for row in rows]))
        assert cleaner.take_tables()[0]["text"].to_pylist() == ["ONE"]
        assert cleaner.counts.duplicates_by == {"image_in_test": 1, "exact": 1}


@pytest.mark.parametrize("done", [True, False])
def test_only_the_progress_of_the_same_run_is_continued(done: bool, tmp_path: Path) -> None:
    """That of an earlier version names no vectors."""
    kept = Progress.start("a", 2)
    kept.consumed, kept.exhausted, kept.done, kept.counts.read = [3, 5], [True, False], done, [3, 5]
    kept.write(tmp_path)
    assert Progress.resume(tmp_path, tmp_path, fingerprint="a", sources=2) == kept
    assert Progress.resume(tmp_path, tmp_path, fingerprint="b", sources=2) == Progress.start("b", 2)
    plain = json.loads((tmp_path / "progress.json").read_text())
    del plain["vectors"]
    (tmp_path / "progress.json").write_text(json.dumps(plain))
    assert Progress.resume(tmp_path, tmp_path, fingerprint="a", sources=2) == kept
    (tmp_path / "progress.json").write_text(json.dumps({**plain, "more": 1}))
    assert Progress.resume(tmp_path, tmp_path, fingerprint="a", sources=2) == Progress.start("a", 2)
