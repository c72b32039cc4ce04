"""Rows of the states of tokens, each token of each record once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.families.ccdd import token_states

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@given(lengths, st.data())
def test_the_rows_of_records_are_those_of_their_tokens(found: list[int], data: st.DataObject) -> None:
    records = data.draw(st.lists(st.integers(0, len(found) - 1), max_size=8))
    starts_n = token_states.starts(np.array(found))
    expected = [sum(found[:record]) + place for record in records for place in range(found[record])]
    assert token_states.rows_of_tokens(starts_n, np.array(records, np.int64)).tolist() == expected
    assert starts_n[-1] == sum(found)


@given(lengths, st.integers(1, 12))
def test_shards_divide_the_records_and_are_no_longer_than_asked_or_one_record(found: list[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_states, "SHARD_TOKENS", size)
        cuts = token_states._cuts(token_states.starts(np.array(found)))
    assert [record for first, last in cuts for record in range(first, last)] == list(range(len(found)))
    assert all(sum(found[first:last]) <= size or last == first + 1 for first, last in cuts)
