"""Lengths of texts in requests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_ldlm.core import SamplingError, check
from mm_ldlm.sampling.limits import Length


@given(st.integers(1, 10**8) | st.sampled_from(["argmax", "sample"]))
def test_numbers_and_two_words_are_lengths(length: Any) -> None:
    assert check(length, Length, name="length") == length


@pytest.mark.parametrize("wrong", [0, -3, 1.5, True, "", "top-3", "argmax ", "5", None, [3], 10**40])
def test_nothing_else_is_a_length(wrong: Any) -> None:
    with pytest.raises(SamplingError, match="length"):
        check(wrong, Length, name="length")
