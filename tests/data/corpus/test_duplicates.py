"""Duplicate removal: the map of digests is a dictionary, and near duplicates are those above the threshold."""

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.data.corpus import duplicates
from mm_ldlm.data.corpus.duplicates import DigestMap, NearDuplicateConfig, NearDuplicates


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), max_size=200))
def test_a_digest_map_is_a_dictionary(items: list[tuple[int, int]]) -> None:
    found, model = DigestMap(), dict[bytes, int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_LATEST", 5)
        for number, value in items:
            digest = hashlib.md5(str(number).encode()).digest()[: 16 - number % 3] + bytes(number % 3)  # ends in NUL
            assert found.get(digest) == model.get(digest)
            if digest not in model:
                found.put(digest, value)
                model[digest] = value
        assert all(found.get(digest) == value for digest, value in model.items())


@pytest.mark.parametrize("remove", ["all", "across_splits"])
def test_near_duplicates_are_those_above_the_threshold(remove: Any) -> None:
    config = NearDuplicateConfig(threshold=0.7, remove=remove)
    seen, text = (
        NearDuplicates(config),
        "a long enough sentence about a dog that runs through the garden in the morning",
    )
    assert seen.split_of(config.signature(text), split=0) is None
    seen.add(config.signature(text), split=2)
    assert seen.split_of(config.signature(text + " sun"), split=0) == 2
    assert seen.split_of(config.signature(text + " sun"), split=2) == (2 if remove == "all" else None)
    other = "quite another sentence about ships that sail over the sea at night"
    assert seen.split_of(config.signature(other), split=0) is None
    assert seen.split_of(config.signature(""), split=0) is None
    whole_n = config.signature(text).hashvalues
    for end in range(10, len(text)):  # the index alone would also find some that are less similar
        part = config.signature(text[:end])
        assert seen.split_of(part, split=0) is None or float((part.hashvalues == whole_n).mean()) >= 0.7
