from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.replacing import NAME, describe
from mm_ldlm.data.corpus.sources import SourceConfig
from mm_ldlm.data.corpus.sources.registry import open_source
from mm_ldlm.data.store.fingerprint import fingerprint

TEXT = "".join(f"The number of this line is {number}.\n" for number in range(30))


def run(folder: Path, *sources: dict[str, Any], **options: Any) -> bytes:
    """Ingest into `folder`; return the manifest of the records."""
    config = parse(IngestionConfig, {"sources": list(sources), "progress": False, **options}, at="ingestion")
    records, refused, _ = ingest(config, seed=0, workspace=folder / "records", quarantine=folder / "quarantine")
    records.write(folder / "records")
    refused.write(folder / "quarantine")
    return (folder / "records" / "manifest.json").read_bytes()


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, dict[str, Any]]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(TEXT)
    return {name: {"kind": "text", "path": str(tmp_path / f"{name}.txt")} for name in ("a", "b")}


def test_the_finished_records_of_other_sources_are_kept(tmp_path: Path, sources: dict[str, dict[str, Any]]) -> None:
    before = run(tmp_path, sources["a"])
    for others in ([sources["b"]], [{"kind": "starter", "num_train": 50}], [sources["a"], {"kind": "starter"}]):
        with pytest.raises(ConfigurationError, match=r"holds 30 finished records of .*a\.txt") as error:
            run(tmp_path, *others)
        assert all(word in str(error.value) for word in ("data=FOLDER", "globals.yml", "ingestion.replace=true"))
        assert str(others[0].get("path", "starter")).rpartition("/")[2] in str(error.value)
        assert (tmp_path / "records" / "manifest.json").read_bytes() == before
    assert run(tmp_path, sources["a"]) == before
    assert run(tmp_path, sources["b"], replace=True) != before


def test_the_same_sources_are_read_again_where_they_changed(tmp_path: Path, sources: dict[str, dict[str, Any]]) -> None:
    before = run(tmp_path, sources["a"])
    Path(sources["a"]["path"]).write_text(TEXT + "One more line for the same source.\n")
    assert run(tmp_path, sources["a"]) != before
    run(tmp_path, {**sources["a"], "max_samples": 10})


def test_every_kind_of_source_is_named_by_where_it_is_read() -> None:
    config = parse(IngestionConfig, {"sources": [
        {"kind": "starter"}, {"kind": "text", "name": "two", "path": ["a.txt", "b.txt"], "max_samples": 3},
        {"kind": "hub", "dataset": "owner/set", "splits": {"train": "train"}},
    ], "path": "other.txt"}, at="ingestion")  # fmt: skip
    assert describe(config) == ["starter (starter)", "two (text: other.txt)", "hub (hub: owner/set)"]
    whole = dataclasses.replace(config, path=None)
    assert describe(whole)[1] == "two (text: a.txt, b.txt)"


def test_a_data_set_of_the_hub_is_described_by_its_name_and_its_revision() -> None:
    """Its rows are not read for the description, and another revision has other rows."""
    keys = {"kind": "hub", "splits": {"train": "hash"}}
    described = [
        open_source(parse(SourceConfig, {**keys, **other}, at="source"), seed=0, max_row_bytes=9).describe()
        for other in ({"dataset": "a"}, {"dataset": "b"}, {"dataset": "a", "revision": "v1"},
                      {"dataset": "a", "revision": "v2"})
    ]  # fmt: skip
    assert len({fingerprint(each) for each in described}) == 4


def test_an_unfinished_store_is_replaced(tmp_path: Path, sources: dict[str, dict[str, Any]]) -> None:
    unfinished = run(tmp_path, sources["a"])
    (tmp_path / "records" / "manifest.json").unlink()
    assert run(tmp_path, sources["b"]) != unfinished


def test_a_store_without_names_is_recognised_by_its_fingerprint(
    tmp_path: Path, sources: dict[str, dict[str, Any]]
) -> None:
    before = run(tmp_path, sources["a"])
    (tmp_path / "records" / NAME).unlink()
    with pytest.raises(ConfigurationError, match="sources that it does not name"):
        run(tmp_path, {"kind": "starter", "num_train": 50})
    assert run(tmp_path, sources["a"]) == before
