"""The index of valid examples: conservation of rows between index and quarantine, whatever fails."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core import ValidationError
from mm_ldlm.data import example_index as module
from mm_ldlm.data.example_index import split_column, write_index, write_quarantine
from mm_ldlm.data.store import ShardStore

COUNT = 20
TEXTS = [f"w{i} w{(i * 3) % 20}" + " w1" * (i % 3) for i in range(COUNT)]
SPLITS = [("train", "test", "validation")[i % 3] for i in range(COUNT)]


@pytest.fixture(scope="module")
def data(write_dataset: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_dataset(tmp_path_factory.mktemp("data"), TEXTS, SPLITS, latents=np.ones((COUNT, 4)), shard_rows=7)


REASONS = st.dictionaries(st.sampled_from(["not_finite", "too_long", "zero"]), st.sets(st.integers(0, COUNT + 1)))


@settings(max_examples=30)
@given(reasons=REASONS, window=st.integers(1, 30))
def test_every_row_is_in_the_index_or_in_quarantine_with_every_reason(
    data: Any, tmp_path_factory: pytest.TempPathFactory, reasons: dict[str, set[int]], window: int
) -> None:
    """A store may have more rows than the records; those have no text to report."""
    folder = tmp_path_factory.mktemp("q")
    failing = {reason: np.array(sorted(rows), np.int64) for reason, rows in reasons.items()}
    bad = {row for rows in reasons.values() for row in rows if row < COUNT}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", window)
        write_quarantine(data.records, failing, folder / "q")
        quarantine = ShardStore.open(folder / "q", "quarantine")
        if not {row for row in range(COUNT) if SPLITS[row] == "train"} - bad:
            with pytest.raises(ValidationError, match=r"20 records.*ingestion\.splits"):
                write_index(data.records, data.tokens, data.require("latents"), quarantine, folder / "i")
            return
        latents = data.require("latents") if window % 2 else None
        made = write_index(data.records, data.tokens, latents, quarantine, folder / "i")
    assert made.fingerprints.keys() == {"records", "tokens", "quarantine", *(["latents"] * (window % 2))}
    found = quarantine.table(slice(None)).to_pylist()
    pairs = sorted((row, reason) for reason, rows in reasons.items() for row in rows if row < COUNT)
    assert [(each["row"], each["reason"]) for each in found] == pairs
    assert all(each["text"] == TEXTS[each["row"]] for each in found)
    assert quarantine.manifest.meta["reasons"] == Counter(reason for _, reason in pairs)
    index = ShardStore.open(folder / "i", "index")
    assert sorted({*index.gather("row", slice(None)).to_numpy().tolist()} | bad) == list(range(COUNT))
    assert len(index) == COUNT - len(bad)
    assert (
        index.gather("id", slice(None)).to_pylist()
        == data.records.gather("id", index.gather("row", slice(None)).to_numpy()).to_pylist()
    )
    counts = {split: [row for row in range(COUNT) if SPLITS[row] == split and row not in bad] for split in {*SPLITS}}
    for split, rows in counts.items():
        assert split_column(index, split, "row").tolist() == rows
        assert split_column(index, split, "length").tolist() == [len(TEXTS[row].split()) for row in rows]
    assert index.manifest.meta["splits"] == {split: len(rows) for split, rows in counts.items()}
    assert index.manifest.meta["quarantined"] == len(bad)
