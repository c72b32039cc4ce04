"""Traces of a run's texts: the texts are the same, and the steps lead to them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.inference.runs import LATENTS
from tests.inference.test_api import same

from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.traces import _fixed
from mm_ldlm.sampling.search import SearchConfig

REQUESTS: dict[str, Callable[[MMLDLM], Texts]] = {
    "invert": lambda model: model.invert(LATENTS),
    "reembedded": lambda model: model.invert(LATENTS, reembed=True, length=5),
    "several": lambda model: model.invert(LATENTS, samples=3, temperature=1.0, length="sample"),
    "search": lambda model: model.invert(LATENTS, search=True),
    "lengths": lambda model: model.invert(LATENTS, search=SearchConfig(candidates=3, rounds=3, lengths=3, beam=2, infill=1.0)),
    "text first": lambda model: model.generate(5, steps=4),
    "latent first": lambda model: model.generate(5, steps=4, order="latent_first"),
    "together": lambda model: model.generate(5, steps=4, order="together"),
    "infill": lambda model: model.infill(["w1 [MASK] w3", "[MASK]"]),
    "edit": lambda model: model.edit(["w1 w2 w3 w4"], targets=LATENTS[:1], strength=0.5),
    "interpolate": lambda model: model.interpolate(LATENTS[:1], LATENTS[1:2], steps=3),
}  # fmt: skip


@pytest.mark.parametrize("batch_tokens", [None, 4])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_traced_request_has_the_same_answer_and_the_way_to_it(
    name: str, batch_tokens: int | None, model: MMLDLM
) -> None:
    model = MMLDLM(model.parts, model.encoder, batch_tokens=batch_tokens)
    plain, found = REQUESTS[name](model), REQUESTS[name](model.traced())
    assert plain.traces is None
    assert {trace.steps[-1].cosine is None for trace in found.traces} == {found.cosines is None}
    same(dataclasses.replace(found, traces=None), plain, exactly=True)
    for trace, tokens in zip(found.traces, found.tokens, strict=True):
        assert trace.steps[-1].words == tuple(model.tokenizer.written(token) for token in tokens)
        assert len(trace.to_frame()) == sum(len(step.words) for step in trace.steps)
        for number, (before, step) in enumerate(zip(trace.steps, trace.steps[1:], strict=False), 1):
            if len(before.words) == len(step.words):
                changed = [old != new and new is not None for old, new in zip(before.words, step.words, strict=True)]
                assert changed == [at == number for at in step.fixed]
            for word, likely, p in zip(step.words, step.likely, step.probabilities, strict=True):
                assert (p is None) is (likely == ())
                assert p is None or word not in dict(likely) or p == pytest.approx(dict(likely)[word], abs=1e-6)


@pytest.mark.parametrize("name", ["search", "lengths", "reembedded"])
def test_the_cosines_of_a_trace_are_those_of_its_texts(name: str, model: MMLDLM) -> None:
    found = REQUESTS[name](model.traced())
    assert [trace.steps[-1].cosine for trace in found.traces] == pytest.approx(found.cosines, abs=1e-6)
    for trace in found.traces:
        for before, step in zip(trace.steps, trace.steps[1:], strict=False):
            assert step.tried or any(step.likely), "a call of the model, or a choice"
            if step.tried:
                chosen = before.cosine if step.accepted is None else step.tried[step.accepted]
                assert [step.cosine, chosen] == pytest.approx([max([before.cosine, *step.tried])] * 2, abs=1e-6)
                assert (step.accepted is None) is (step.words == before.words)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [([1, 1], [1, 1, 1], (3, 4, 7)), ([1, 2], [1, 9], (3, 0)), ([1, 9], [2, 9], (7, 0))],
)
def test_the_last_change_of_a_repeated_word_and_of_a_masked_one(before: Any, after: Any, expected: Any) -> None:
    assert _fixed(before, after, (3, 4), 7, mask_id=9) == expected
