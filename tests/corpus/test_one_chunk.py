"""Duplicates inside one chunk, results whatever the chunks, and candidates of the index of near duplicates."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mm_ldlm.data.corpus.cleaning import Cleaner
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import NearDuplicateConfig, NearDuplicates
from mm_ldlm.data.corpus.filters import LengthConfig
from mm_ldlm.data.corpus.row_tests import RowTests
from mm_ldlm.data.corpus.sources.base import BadRow, Row
from mm_ldlm.data.corpus.sources.config import SourceConfig
from mm_ldlm.data.corpus.tokenizer import TextTokenizer, TokenizerConfig, complete_specials


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


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("too_long", ["truncate", "split", "drop"])
def test_records_quarantine_and_counts_do_not_depend_on_the_chunks(too_long: Any, near: bool) -> None:
    base = Tokenizer(models.WordLevel({"w": 0, "[UNK]": 1}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    limits = TokenizerConfig(max_length=3, min_length=2, too_long=too_long)
    texts = ["w a", "w", "w w w w w", "w a", "W A", "", "w b c", "w b c d", "a\0b", "w w w w w", "W B C", "w x y z q"]
    rows: list[tuple[int, Row | BadRow]] = [
        (i % 2, Row(text, f"f{i % 2}", i, "test" if i == 4 else None)) for i, text in enumerate(texts)
    ]
    rows[7:7] = [(1, BadRow("f1", 99, "encoding", "why")), (1, Row("w v", "f1", 5, pair="w w w w"))]
    config = IngestionConfig(
        sources=(SourceConfig(kind="starter", name="one"), SourceConfig(kind="starter", name="two")),
        near_duplicates=NearDuplicateConfig() if near else None,
    )
    tests = RowTests(config, TextTokenizer(complete_specials(base), max_length=3), limits, with_signatures=near)
    found = []
    for size in (len(rows), 1, 2, 5):
        counts = Counts.empty(2)
        cleaner = Cleaner(config, counts)
        for start in range(0, len(rows), size):
            cleaner.clean(tests(rows[start : start + size]))
        accepted, refused, _ = cleaner.take_tables()
        sums = {name: value for name, value in counts.to_dict().items() if name != "examples"}  # the first of a chunk
        found.append((accepted.to_pylist(), sorted(map(str, refused.to_pylist())), sums))
        assert counts.balanced
    for each in found[1:]:
        assert each == found[0]
    assert found[0][2]["truncated"] == (4 if too_long == "truncate" else 0)
    assert sum(found[0][2]["from_splitting"]) == (4 if too_long == "split" else 0)


@pytest.mark.parametrize("dim", [None, 2])
def test_pieces_keep_their_numbers_and_only_a_text_whose_vector_is_used_stays_whole(dim: int | None) -> None:
    base = Tokenizer(models.WordLevel({"w": 0, "[UNK]": 1}, unk_token="[UNK]"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = IngestionConfig(sources=(SourceConfig(kind="starter"),), length=LengthConfig(min_characters=4))
    limits = TokenizerConfig(max_length=2, too_long="split")
    tests = RowTests(config, TextTokenizer(complete_specials(base), max_length=2), limits, vector_dim=dim)
    found = tests([(0, Row("aa bb c d ee ff", "f", 7, vector=np.ones(2), meta='{"n": 1}'))])
    if dim is not None:
        assert [(each.reason, each.line) for each in found.refusals] == [("too_many_tokens", 7)]
        return
    assert [(each.reason, each.text) for each in found.refusals] == [("too_short", "c d")]
    metas = [json.loads(each.meta or "") for each in found.candidates]
    assert [(meta["piece"], meta["pieces"], meta["n"]) for meta in metas] == [(0, 3, 1), (2, 3, 1)]
    assert [each.text for each in found.candidates] == ["aa bb", "ee ff"]
    assert found.from_splitting == {0: 2}
