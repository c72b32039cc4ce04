"""Mixtures of sources: which weights and names go together, and what `path` and `text_column` change."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig


def mixture(*sources: dict[str, Any], **keys: Any) -> IngestionConfig:
    return parse(IngestionConfig, {"sources": list(sources), **keys}, at="ingestion")


@pytest.mark.parametrize("weighted", list(product((False, True), repeat=3)))
def test_every_source_has_a_weight_or_none_has_one(weighted: tuple[bool, ...]) -> None:
    sources = [
        {"kind": "starter", "name": f"s{i}", **({"weight": 0.5} if each else {})} for i, each in enumerate(weighted)
    ]
    if len(set(weighted)) == 1:
        mixture(*sources)
        return
    with pytest.raises(ConfigurationError) as error:
        mixture(*sources)
    named = ", ".join(f"'s{i}'" for i, each in enumerate(weighted) if not each)
    assert f"sources [{named}] have no weight: give a weight to every source or to none" in str(error.value)


def test_every_source_has_a_name_of_its_own() -> None:
    mixture({"kind": "starter"}, {"kind": "digits"}, {"kind": "starter", "name": "more"})
    for sources in (
        [{"kind": "starter"}, {"kind": "digits"}, {"kind": "starter"}],
        [{"kind": "starter"}, {"kind": "digits", "name": "starter"}],
    ):
        with pytest.raises(ConfigurationError, match=r"several sources are called \['starter'\]"):
            mixture(*sources)


@pytest.mark.parametrize(
    ("keys", "has"),
    [
        ({"kind": "text", "path": "a.txt"}, False),
        ({"kind": "text", "path": "a.txt", "vectors": "beside"}, True),
        ({"kind": "jsonl", "path": "a.jsonl", "vector_column": "e"}, True),
        ({"kind": "layout", "path": "a", "tokens": True}, False),
        ({"kind": "layout", "path": "a", "latents": True}, True),
    ],
)
def test_sources_with_vectors_are_known_by_their_keys(keys: dict[str, Any], has: bool) -> None:
    assert mixture(keys).sources[0].has_vectors == has


def test_a_path_and_columns_of_the_command_line_belong_to_the_source_with_a_path() -> None:
    starter, table = {"kind": "starter"}, {"kind": "csv", "path": "a.csv", "columns": ["x", "y"], "header": False}
    changed = mixture(starter, table, path="b.csv", text_column="z").with_path_in_source()
    assert changed == mixture(starter, {**table, "path": "b.csv", "columns": ["z"]})
    assert mixture(starter, table, text_column="z").with_path_in_source().sources[1].path == "a.csv"
    assert mixture(starter, table, path="b.csv").with_path_in_source().sources[1].columns == ("x", "y")
    plain = mixture(starter, table)
    assert plain.with_path_in_source() is plain
    for sources, count in (([starter], 0), ([table, {**table, "name": "two", "path": "c.csv"}], 2)):
        with pytest.raises(ConfigurationError, match=f"exactly one source, but {count} sources have a path"):
            mixture(*sources, path="b.csv")
        with pytest.raises(ConfigurationError, match=r"'text_column' names the column of exactly one source"):
            mixture(*sources, text_column="z")


def test_a_mixture_ends_with_the_first_source_that_is_exhausted(tmp_path: Path, ingested: Any) -> None:
    """Three of four rows are of the larger source, in the same order at each run."""
    for name, rows in (("a", 30), ("b", 4)):
        (tmp_path / f"{name}.txt").write_text("".join(f"row {i} of {name}\n" for i in range(rows)))
    sources = [
        {"kind": "text", "name": name, "path": str(tmp_path / f"{name}.txt"), "weight": weight}
        for name, weight in (("a", 3), ("b", 1))
    ]
    found = ingested(*sources)
    assert found.texts == ingested(*sources).texts
    assert [text[-1] for text in found.texts] == ["a", "a", "a", "b"] * 4 + ["a", "a", "a"]
    about = found.report["sources"]
    assert (about["a"]["read_to_its_end"], about["b"]["read_to_its_end"]) == (False, True)


def test_the_quarantine_has_bounded_shards_that_are_checked_like_those_of_the_records(
    tmp_path: Path, ingest_into: Any
) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n" + b"".join(b"bad \xff %d\n" % i for i in range(45)) + b"also good\n")
    source = {"kind": "text", "path": str(tmp_path / "a.txt")}
    keys = {"shard_rows": 10, "max_bad_fraction": 1.0}
    first = ingest_into(tmp_path / "out", source, **keys)
    assert [shard.rows for shard in first.quarantine.manifest.shards] == [19, 10, 10, 6]
    assert [row["line"] for row in first.quarantined] == list(range(2, 47))
    for folder in ("quarantine", "records"):
        shard = tmp_path / "out" / folder / "part-000000.arrow"
        whole = shard.read_bytes()
        for damaged in (whole[:-1] + b"X", whole[:-1], None):
            shard.unlink() if damaged is None else shard.write_bytes(damaged)
            again = ingest_into(tmp_path / "out", source, **keys)
            assert again.quarantine.damaged_shards() == again.records.damaged_shards() == []
            assert (again.texts, again.quarantined) == (first.texts, first.quarantined)
            assert again.report["resumed_after_rows"] == 0
    assert ingest_into(tmp_path / "out", source, **keys).report["resumed_after_rows"] == 47


def test_the_quarantine_has_the_beginning_of_a_long_text(tmp_path: Path, ingested: Any) -> None:
    (tmp_path / "a.txt").write_text("short\n" + "long " * 500 + "\n")
    found = ingested({"kind": "text", "path": str(tmp_path / "a.txt")}, length={"max_characters": 99})
    (row,) = found.quarantined
    assert (row["reason"], row["excerpt"]) == ("too_long", ("long " * 500)[:160])
