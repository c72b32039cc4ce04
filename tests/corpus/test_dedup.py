from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.dedup import DigestMap, NearDuplicateConfig, NearDuplicates, as_words


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=30), max_size=12))
def test_a_digest_map_is_a_dictionary(batches: list[list[int]]) -> None:
    found, model = DigestMap(), dict[int, int]()
    for batch in batches:
        keys = as_words([hashlib.md5(str(n).encode()).digest() for n in batch])
        assert found.lookup(keys).tolist() == [model.get(n, -1) for n in batch]
        new = [i for i, n in enumerate(batch) if n not in model and n not in batch[:i]]
        found.add(keys[new], np.array([batch[i] % 3 for i in new], np.uint8))
        model |= {batch[i]: batch[i] % 3 for i in new}
        assert len(found) == len(model)


def test_both_words_of_a_digest_are_compared() -> None:
    found = DigestMap()
    found.add(np.array([[7, 1]], np.uint64), np.array([2], np.uint8))
    assert found.lookup(np.array([[7, 1], [7, 2], [8, 1]], np.uint64)).tolist() == [2, -1, -1]


def test_runs_stay_few_as_they_grow() -> None:
    found, rng = DigestMap(), np.random.default_rng(0)
    for _ in range(300):
        found.add(rng.integers(0, 2**63, (50, 2), dtype=np.uint64), np.zeros(50, np.uint8))
    assert len(found) == 15_000
    assert len(found._runs) < 12


def test_near_duplicates_are_those_above_the_threshold() -> None:
    seen = NearDuplicates(NearDuplicateConfig(threshold=0.7))
    text = "a long enough sentence about a dog that runs through the garden in the morning"
    seen.add(seen.signature(text))
    assert seen.seen(seen.signature(text))
    assert seen.seen(seen.signature(text + " sun"))
    assert not seen.seen(seen.signature("quite another sentence about ships that sail over the sea at night"))


@pytest.mark.parametrize("keys", [{"threshold": 0.99}, {"num_perm": 16}, {"shingle_characters": 0}])
def test_settings_that_estimate_nothing_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        parse(NearDuplicateConfig, keys, at="ingestion.near_duplicates")
