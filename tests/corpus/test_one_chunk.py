"""Duplicates inside one chunk, and candidates that only the index takes for near duplicates."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mm_ldlm.corpus.cleaning import Cleaner
from mm_ldlm.corpus.config import IngestionConfig
from mm_ldlm.corpus.counts import Counts
from mm_ldlm.corpus.dedup import NearDuplicateConfig, NearDuplicates
from mm_ldlm.corpus.row_tests import RowTests
from mm_ldlm.corpus.sources.base import Row
from mm_ldlm.corpus.sources.config import SourceConfig


def cleaned(*chunks: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], Counts]:
    """The accepted (text, split) pairs of chunks of (text, split)."""
    counts = Counts.empty(1)
    config = IngestionConfig(sources=(SourceConfig(kind="starter"),))
    cleaner, tests = Cleaner(config, counts), RowTests(config)
    for chunk in chunks:
        rows = [Row(text, "file", line, split) for line, (text, split) in enumerate(chunk, start=1)]
        cleaner.clean(tests([(0, row) for row in rows]))
    table, _, _ = cleaner.take_tables()
    return list(zip(table["text"].to_pylist(), table["split"].to_pylist(), strict=True)), counts


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("first", "second"), [("test", "train"), ("train", "validation"), ("validation", "test")])
def test_a_case_variant_never_crosses_splits(first: str, second: str, together: bool) -> None:
    one, two = ("A dog runs.", first), ("a DOG runs.", second)
    accepted, counts = cleaned([one, two]) if together else cleaned([one], [two])
    assert accepted == [one]
    assert counts.duplicates_by == {f"in_{first}_but_for_case": 1}
    assert counts.balanced


@pytest.mark.parametrize("together", [True, False])
def test_a_case_variant_of_the_same_split_stays_and_an_exact_duplicate_goes(together: bool) -> None:
    one, two = ("A dog runs.", "train"), ("a DOG runs.", "train")
    accepted, counts = cleaned([one, two, one]) if together else cleaned([one], [two], [one])
    assert accepted == [one, two]
    assert counts.duplicates_by == {"exact": 1}


@pytest.mark.parametrize("equal", [0, 47, 48, 63, 64])
def test_a_candidate_of_the_index_is_verified(equal: int) -> None:
    """48 of 64 is the threshold of 0.75: the index may offer anything, the signatures decide."""
    seen = NearDuplicates(NearDuplicateConfig(threshold=0.75, num_perm=64))
    known = np.arange(1, 65, dtype=np.uint64)
    seen._signatures = [known.astype(np.uint32)]
    seen._index = SimpleNamespace(query=lambda sketch: [0])
    offered = np.where(np.arange(64) < equal, known, known + 1000)
    assert seen.seen(SimpleNamespace(hashvalues=offered)) == (equal >= 48)
