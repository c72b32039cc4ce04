"""What an ingestion shows and leaves behind: progress, the order of reasons, numbers in messages, stale manifests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus import ingestion, text_splitting, tokens
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.progress import Progress
from mm_ldlm.data.corpus.replacing import refuse_other_sources
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources import BadRow, Row, SourceConfig
from mm_ldlm.data.corpus.sources.csv_records import CsvRecords
from mm_ldlm.data.corpus.sources.files import BadLine, Line
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import Manifest, Shard
from mm_ldlm.extras.layout.reading import Folder
from stand_ins import Bar

STARTER = SourceConfig(kind="starter")


def opened(**keys: Any) -> Any:
    return open_source(parse(SourceConfig, keys, at="source"), seed=0, max_row_bytes=9_999)


@pytest.mark.parametrize("progress", [True, False])
def test_the_bar_counts_the_rows_that_are_read_from_where_the_run_continues(
    progress: bool, ingest_into: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "tqdm", Bar)
    monkeypatch.setattr(ingestion, "CHUNK_ROWS", 4)
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(10)))
    source, keys = {"kind": "text", "path": str(tmp_path / "a.txt")}, {"progress": progress, "shard_rows": 4}
    advance = ingestion._Chunks.advance

    def killed(chunks: Any) -> None:
        advance(chunks)
        if sum(Bar.shown["rows"]) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ingestion._Chunks, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            ingest_into(tmp_path / "out", source, **keys)
    assert (Bar.shown["initial"], Bar.shown["rows"]) == (0, [4])
    ingest_into(tmp_path / "out", source, **keys)
    assert (Bar.shown["initial"], Bar.shown["rows"]) == (4, [4, 2])
    assert Bar.shown["disable"] is (None if progress else True), "None hides the bar where there is no terminal"


def test_the_most_frequent_reason_is_named_first() -> None:
    found = Progress.start("p", 1)
    found.counts = Counts.empty(1)
    found.counts.quarantined_by.update(nul=2, too_long=5, encoding=3)
    found.counts.examples = {reason: f"f, line {n}: d" for n, reason in enumerate(("encoding", "nul", "too_long"))}
    assert ingestion._reasons(found) == (
        "5 too_long (first: f, line 2: d); 3 encoding (first: f, line 0: d); 2 nul (first: f, line 1: d)."
    )


def test_a_manifest_without_the_shards_of_this_run_is_removed(tmp_path: Path) -> None:
    """It would show the store as finished while it is filled."""
    shard, made_by = Shard(name="part-000000.arrow", rows=1, bytes=1, sha256="0"), {"parameters": "p"}
    for keep, fingerprints, stays in (([], made_by, False), ([shard], made_by, True), ([shard], {}, False)):
        (tmp_path / shard.name).unlink(missing_ok=True)
        Manifest(kind="records", rows=1, shards=(shard,), fingerprints=fingerprints).write(tmp_path)
        ingestion._clear(tmp_path, keep, made_by=made_by)
        assert Manifest.exists(tmp_path) == stays
    Manifest(kind="tokens", rows=1, shards=(shard,)).write(tmp_path)
    assert tokens._resume(tmp_path, "f") == {"fingerprint": "f", "shards": {}}
    assert not Manifest.exists(tmp_path)


def test_the_records_that_are_kept_are_counted_in_the_message(tmp_path: Path) -> None:
    shard = Shard(name="part-000000.arrow", rows=1_234_567, bytes=1, sha256="0")
    Manifest(kind="records", rows=shard.rows, shards=(shard,)).write(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"holds 1,234,567 finished records of sources that it does not name, and this run"
    ):
        refuse_other_sources(IngestionConfig(sources=(STARTER,)), tmp_path, fingerprint="f")


def test_an_archive_is_written_below_folders_that_are_made(tmp_path: Path) -> None:
    with Folder(tmp_path / "new/folder/a.zip", "w") as folder:
        folder.write("texts/train/0.txt", b"one")
    with Folder(tmp_path / "new/folder/a.zip") as folder:
        assert folder.names() == ["texts/train/0.txt"]


# -- rows and their places ---------------------------------------------------------------------------------------------


def test_the_place_of_a_character_without_a_code_is_that_of_its_text() -> None:
    out = RowTests(IngestionConfig(sources=(STARTER,)))([(0, Row("ab\ud800\udc01c", "f", 3))])
    (refusal,) = out.refusals
    assert (refusal.reason, refusal.line) == ("encoding", 3)
    assert refusal.detail.startswith("lone surrogate at character 2:")


def test_words_that_are_too_many_are_halved() -> None:
    one_each = SimpleNamespace(
        base=SimpleNamespace(encode=lambda text, add_special_tokens: SimpleNamespace(ids=text.split()))
    )
    for text, most, parts in (
        ("a b c d", 2, ["a b", "c d"]), ("a b c d e", 2, ["a b", "c", "d e"]), ("a b c", 3, ["a b c"]),
    ):  # fmt: skip
        found = text_splitting._split_in_halves(text, one_each, most)  # type: ignore[arg-type]
        assert found == [(part, len(part.split())) for part in parts]


def test_the_first_bad_line_of_a_record_is_its_reason() -> None:
    bad = [BadLine("f", 3, "nul", "first", ""), BadLine("f", 4, "encoding", "second", "")]
    lines = [Line(1, "a,b"), Line(2, '1,"x'), *bad, Line(5, 'y"'), Line(6, "2,z")]
    found = list(CsvRecords(iter(lines), delimiter=",", file="f", max_bytes=99))
    assert found == [
        (1, ["a", "b"]), ("f", 3, "nul", "first; the record of lines 2 to 5 is left out", ""), (6, ["2", "z"])
    ]  # fmt: skip
    assert isinstance(found[1], BadRow)


def test_a_missing_column_is_reported_with_the_first_twelve_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({f"c{number:02d}": number for number in range(20)}))
    there = ", ".join(f"c{number:02d}" for number in range(12))
    (bad,) = opened(kind="jsonl", path=str(tmp_path / "a.jsonl")).rows()
    assert (bad.reason, bad.detail) == ("missing_column", f"no column 'text'; found {there}.")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "t"} | {f"c{number:02d}": number for number in range(20)}))
    (bad,) = opened(kind="jsonl", path=str(tmp_path / "b.jsonl"), vector_column="v").rows()
    assert bad.detail == f"no column 'v'; found text, {there.removesuffix(', c11')}"
    (tmp_path / "c.jsonl").write_text(json.dumps({f"column {number:02d} {'x' * 20}": number for number in range(12)}))
    (bad,) = opened(kind="jsonl", path=str(tmp_path / "c.jsonl"), columns=["colum"]).rows()
    assert bad.detail == (
        f"no column 'colum'; found column 00 {'x' * 20}, column 01 {'x' * 8} … {'x' * 18}, column 11 {'x' * 20}."
    )


def test_a_glob_of_two_stars_leads_into_folders_of_any_depth(tmp_path: Path) -> None:
    for name in ("a.txt", "one/b.txt", "one/two/three/c.txt", "one/two/d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [row.text for row in opened(kind="text", path=f"{tmp_path}/**/*.txt").rows()] == [
        "a.txt", "one/b.txt", "one/two/three/c.txt"
    ]  # fmt: skip


def test_a_saved_data_set_is_described_by_every_file_of_rows_and_settings(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "d")
    (tmp_path / "d/notes.md").write_text("not read")
    source = opened(kind="disk", path=str(tmp_path / "d"))
    files = source.describe()["files"]
    assert set(files) == {"data-00000-of-00001.arrow", "dataset_info.json", "state.json"}
    with (tmp_path / "d/data-00000-of-00001.arrow").open("ab") as file:
        file.write(b"\0")
    changed = source.describe()["files"]
    assert [name for name in files if changed[name] != files[name]] == ["data-00000-of-00001.arrow"]


def test_the_vocabulary_of_the_default_tokenizer_has_no_capitals_whatever_a_file_would_have() -> None:
    """`lowercase` belongs to a vocabulary in a file, which does not record it."""
    plain, other = (load_tokenizer(TokenizerConfig(max_length=9, lowercase=lower)) for lower in (True, False))
    assert plain.base_fingerprint == other.base_fingerprint
    assert plain.encode(["The Cat"]) == plain.encode(["the cat"])
