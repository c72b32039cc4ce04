"""The messages of stores of other sources and of reports, word for word, and the sentence that is logged."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.core import files as atomic
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, ValidationError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.replacing import NAME, refuse_other_sources
from mm_ldlm.data.corpus.report import ingestion_report
from mm_ldlm.data.store import Manifest, Shard

# -- stores of other sources -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ({"sources": ["one (text: a)", "two (hub: b)"]}, "['one (text: a)', 'two (hub: b)']"),
        (None, "sources that it does not name"), ({"sources": []}, "sources that it does not name"),
        ({"other": 1}, "sources that it does not name"), ([1], "sources that it does not name"),
        ("half", "sources that it does not name"),
    ],
)  # fmt: skip
def test_both_sources_are_named_where_a_store_would_be_replaced(kept: Any, found: str, tmp_path: Path) -> None:
    shard = Shard(name="part-000000.arrow", rows=54_321, bytes=1, sha256="0")
    made = {"sources": "print of the sources", "parameters": "another print"}
    Manifest(kind="records", rows=shard.rows, shards=(shard,), fingerprints=made).write(tmp_path)
    if kept == "half":
        (tmp_path / NAME).write_text('{"sources": [')
    elif kept is not None:
        atomic.write_json(tmp_path / NAME, kept)
    sources = [{"kind": "text", "name": "mine", "path": "old"}, {"kind": "digits"}]
    config = parse(IngestionConfig, {"sources": sources, "path": "new"}, at="ingestion")
    with pytest.raises(ConfigurationError) as raised:
        refuse_other_sources(config, tmp_path, fingerprint="another print")
    assert str(raised.value) == (
        f"parameter 'ingestion.sources': {tmp_path} holds 54,321 finished records of {found}, and this run reads "
        "['mine (text: new)', 'digits (digits)']. Choose another folder (`--params data=FOLDER`, or 'data' in the "
        "environment's globals.yml), or replace the records by `--params ingestion.replace=true`."
    )
    if kept is None or kept in ({"other": 1}, [1], "half"):
        refuse_other_sources(config, tmp_path, fingerprint="print of the sources")
    refuse_other_sources(
        parse(IngestionConfig, {"sources": sources, "replace": True}, at="i"), tmp_path, fingerprint=""
    )
    refuse_other_sources(config, tmp_path / "nothing", fingerprint="")


# -- reports -----------------------------------------------------------------------------------------------------------

PREPARED = {
    "rows_in": 30, "rows_from_splitting": 4, "accepted": 17, "duplicates": 8, "quarantined": 5, "fingerprint": "f",
    "duplicates_by_kind": {"exact": 6, "near": 2}, "quarantined_by_reason": {"nul": 3, "empty": 2},
}  # fmt: skip
SENTENCE = (
    "26 rows read + 4 from splitting = 17 accepted + 8 duplicates (6 exact, 2 near) + 5 quarantined (3 nul, 2 empty)"
)


def tokens(**changes: Any) -> Any:
    meta = {"lengths": {"3": 17}, "vocab_size": 1, "base_vocab_size": 2, "max_length": 3, "splits": {}}
    return SimpleNamespace(**{"rows": 17, "fingerprints": {"records": "f"}, "meta": meta, **changes})


def test_the_outcome_of_every_row_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mm_ldlm.data.corpus.report"):
        found = ingestion_report(PREPARED, tokens())
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [("INFO", f"ingestion: {SENTENCE}")]
    assert {name: found[name] for name in PREPARED} == PREPARED
    assert found["conservation"] == SENTENCE


@pytest.mark.parametrize(
    ("preparation", "store", "words"),
    [
        ({"rows_in": 31}, {},
         "31 rows were read, but {'accepted': 17, 'duplicates': 8, 'quarantined': 5} sum to 30: rows were lost. This "
         "is a bug in mm_ldlm: please report it with the parameters."),
        ({}, {"rows": 18},
         "17 records were accepted, but the token store has 18 rows: it was made from other records. Run the whole "
         "ingestion pipeline again."),
        ({}, {"fingerprints": {"tokenizer": "f"}},
         "the token store was made from other records than those of this report. Run the ingestion pipeline again."),
    ],
)  # fmt: skip
def test_a_report_of_other_records_is_refused(preparation: dict[str, Any], store: Any, words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ingestion_report({**PREPARED, **preparation}, tokens(**store))
    assert str(raised.value) == words
