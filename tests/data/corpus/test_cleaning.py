"""Duplicate removal: the map of digests is a dictionary, and near duplicates are those above the threshold."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.data.corpus import filters
from mm_ldlm.data.corpus.filters import DigestMap, NearDuplicateConfig, NearDuplicates


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), max_size=200))
def test_a_digest_map_is_a_dictionary(items: list[tuple[int, int]]) -> None:
    found, model = DigestMap(), dict[bytes, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_LATEST", 5)
        for number, value in items:
            digest = hashlib.md5(str(number).encode()).digest()[: 16 - number % 3] + bytes(number % 3)  # ends in NUL
            assert found.get(digest) == model.get(digest)
            if digest not in model:
                found.put(digest, value)
                model[digest] = value
        assert all(found.get(digest) == value for digest, value in model.items())


def test_near_duplicates_are_those_above_the_threshold() -> None:
    config = NearDuplicateConfig(threshold=0.7)
    seen = NearDuplicates(config)
    text = "a long enough sentence about a dog that runs through the garden in the morning"
    assert not seen.seen(config.signature(text))
    seen.add(config.signature(text))
    assert seen.seen(config.signature(text + " sun"))
    assert not seen.seen(config.signature("quite another sentence about ships that sail over the sea at night"))
    assert not NearDuplicates(config).seen(config.signature(""))
