"""Small tokenizers and a runner for ingestions, shared by the tests of the corpus room."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.config import parse
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, load_tokenizer
from mm_ldlm.data.store import Manifest, ShardStore


@dataclasses.dataclass
class Ingested:
    """A finished ingestion: both stores, opened, and the report."""

    records: ShardStore
    quarantine: ShardStore
    report: dict[str, Any]
    manifest: Manifest

    @property
    def texts(self) -> list[str]:
        return self.records.strings("text").take(slice(None))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.records.take(slice(None)).to_pylist()

    @property
    def quarantined(self) -> list[dict[str, Any]]:
        return self.quarantine.take(slice(None)).to_pylist()


_load = functools.lru_cache(load_tokenizer)


def run_ingestion(
    directory: Path, *sources: dict[str, Any], tokens: dict[str, Any] | None = None, **keys: Any
) -> Ingested:
    """Ingest into `directory` and commit both manifests."""
    parameters = {"sources": list(sources), "progress": False, **keys}
    config = parse(IngestionConfig, parameters, at="ingestion")
    limits = None if tokens is None else parse(TokenizerConfig, tokens, at="tokenizer")
    records, quarantine, report = ingest(
        config,
        seed=0,
        workspace=directory / "records",
        quarantine=directory / "quarantine",
        tokenizer=None if limits is None else _load(limits),
        tokens=limits,
    )
    assert report["rows_in"] == report["accepted"] + report["duplicates"] + report["quarantined"]
    records.write(directory / "records")
    quarantine.write(directory / "quarantine")
    return Ingested(
        ShardStore.open(directory / "records", "records"),
        ShardStore.open(directory / "quarantine", "quarantine"),
        report,
        records,
    )


@pytest.fixture(scope="session")
def ingest_into() -> Callable[..., Ingested]:
    """`run_ingestion`, as a fixture because tests cannot import each other's modules."""
    return run_ingestion


@pytest.fixture
def ingested(tmp_path: Path) -> Callable[..., Ingested]:
    """`ingested(source, ..., **ingestion parameters)` in the test's own folder."""
    count = iter(range(1000))
    return lambda *sources, **keys: run_ingestion(tmp_path / f"out{next(count)}", *sources, **keys)


@pytest.fixture(scope="session")
def bert() -> TextTokenizer:
    """The default tokenizer on its whole vocabulary."""
    return load_tokenizer(TokenizerConfig(max_length=64))
