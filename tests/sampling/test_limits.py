"""Lengths of texts in requests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import build

from mm_ldlm.core import SamplingError, check
from mm_ldlm.sampling.limits import DrawnLength, Length, length_refusal, lengths_tried
from mm_ldlm.sampling.registry import text_sampler


@given(st.integers(1, 10**8))
def test_numbers_and_their_rankings_are_lengths(number: int) -> None:
    assert check(number, Length, name="length") == number
    assert check(number, DrawnLength, name="length") == number
    assert lengths_tried(number) == 1
    assert lengths_tried(check(f"top-{number}", Length, name="length")) == number
    with pytest.raises(SamplingError, match="length"):
        check(f"top-{number}", DrawnLength, name="length")


@pytest.mark.parametrize("word", ["argmax", "sample"])
def test_words_are_lengths(word: str) -> None:
    assert check(word, Length, name="length") == check(word, DrawnLength, name="length") == word
    assert lengths_tried(word) == 1


@pytest.mark.parametrize("wrong", [0, -3, 1.5, True, "", "top-", "top-0", "top-x", "argmax ", "5", None, [3], 10**40])
def test_nothing_else_is_a_length(wrong: Any) -> None:
    with pytest.raises(SamplingError, match="length"):
        check(wrong, Length, name="length")


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_number_beyond_the_model_is_for_samplers_that_exceed_its_window(length: int, longest: int) -> None:
    traits = build().traits
    blocks, plain = text_sampler("blocks", inner={"kind": "confidence"}), text_sampler("confidence")
    for sampler in (None, plain):
        reason = length_refusal(length, max_length=longest, sampler=sampler, process=traits)
        assert (reason is None) == (length <= longest)
        assert reason is None or (str(length) in reason and str(longest) in reason and "'blocks'" in reason)
    assert length_refusal(length, max_length=longest, sampler=blocks, process=traits) is None
    for word in (None, "argmax", "top-3"):
        assert length_refusal(word, max_length=1, sampler=None, process=None) is None
