"""Requests that a run cannot fulfil."""

from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import build

from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.sampling.registry import text_sampler


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_number_beyond_the_model_is_for_samplers_that_exceed_its_window(length: int, longest: int) -> None:
    run = Capabilities(uses=frozenset({"l2t"}), process=build().traits, trained_as="a toy")
    blocks, plain = text_sampler("blocks", inner={"kind": "confidence"}), text_sampler("confidence")
    for sampler in (None, plain):
        reason = run.length_refusal(length, "l2t", max_length=longest, sampler=sampler)
        assert (reason is None) == (length <= longest)
        assert reason is None or (str(length) in reason and str(longest) in reason and "'blocks'" in reason)
    assert run.length_refusal(length, "l2t", max_length=longest, sampler=blocks) is None
    for word in (None, "argmax", "sample"):
        assert run.length_refusal(word, "l2t", max_length=1) is None
