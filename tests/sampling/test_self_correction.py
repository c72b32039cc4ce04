"""Self-correction: implausible words are drawn again, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from tables import IDS, JOINT, MASK, PAD, V, best_logits, gidd, uniform

from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.registry import text_sampler

PROCESSES = {"uniform": uniform(), "gidd": gidd()}


@pytest.fixture(params=PROCESSES)
def process(request):
    return PROCESSES[request.param]


def denoiser(process, times=None):
    def logits(tokens_AL, t_A):
        if times is not None:
            times.append(float(t_A[0]))
        return best_logits(process, tokens_AL, t_A)

    return TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=V + 2)


def write(process, rows, *, count=3000, kind="self_correction", **settings):
    masks = torch.full((count, 2), MASK)
    return text_sampler(kind, steps=1, **settings).sample(
        denoiser(process), masks, process=process, generator=rows(count)
    )


def mean_log_p(tokens):
    return float(JOINT[tokens[:, 0], tokens[:, 1]].log().mean())


def test_corrections_raise_the_probability_of_texts_that_were_written_in_one_step(process, rows):
    """One step draws the words independently; corrections find the pairs that do not fit."""
    before, after = write(process, rows, kind="ancestral"), write(process, rows)
    assert mean_log_p(after.tokens) > mean_log_p(before.tokens) + 0.3
    assert (after.tokens < V).all()
    changed = after.tokens != before.tokens
    assert 0.1 < float(changed.double().mean()) < 0.7
    assert (after.steps[changed] >= 1).all()
    assert (after.calls_per_row >= 2).all()
    likely = best_logits(process, after.tokens, torch.full((3000,), 0.01))[..., :V].argmax(-1) == after.tokens
    assert float(likely.all(1).double().mean()) > 0.95, "a finished text agrees with the model"


def test_a_correction_writes_the_most_probable_of_the_drawn_tokens_that_differ(process, rows):
    """At temperature 0 from (1, 0): p(second = 1 | first = 1) = 2/3 and p(first = 0 | second = 0) = 5/7, so (0, 0)."""
    sampler = text_sampler("self_correction", steps=1, corrections=1, correction_temperature=0.0)
    canvas = torch.tensor([[MASK, MASK]])
    for seed in range(400):
        before = text_sampler("ancestral", steps=1).sample(
            denoiser(process), canvas, process=process, generator=rows(1, seed)
        )
        if before.tokens.tolist() == [[1, 0]]:
            after = sampler.sample(denoiser(process), canvas, process=process, generator=rows(1, seed))
            assert after.tokens.tolist() == [[0, 0]]
            assert after.steps.tolist()[0][0] == 1
            assert float(after.log_probs[0, 0].exp()) == pytest.approx(0.30 / 0.42, abs=0.02)
            return
    raise AssertionError("no text (1, 0) was drawn")


def test_given_tokens_and_pads_stay_and_a_text_does_not_depend_on_its_batch(process, rows):
    canvas = torch.tensor([[MASK, 2], [MASK, MASK], [1, 0], [MASK, PAD]])
    sampler = text_sampler("self_correction", steps=2)
    whole = sampler.sample(denoiser(process), canvas, process=process, generator=rows(4))
    assert whole.tokens[canvas != MASK].tolist() == [2, 1, 0, PAD]
    assert int(whole.calls_per_row[2]) == 0
    for row in range(4):
        generator = rows(4).select(torch.tensor([row]))
        alone = sampler.sample(denoiser(process), canvas[row : row + 1], process=process, generator=generator)
        assert torch.equal(alone.tokens[0], whole.tokens[row])
        assert int(alone.calls_per_row[0]) == int(whole.calls_per_row[row])


def test_every_setting_has_its_effect(process, rows):
    base = write(process, rows)
    assert not torch.equal(write(process, rows, corrections=1).tokens, base.tokens)
    assert int(write(process, rows, corrections=1).model_calls) == 2
    hot = {"corrections": 8, "correction_temperature": 5.0}
    assert mean_log_p(write(process, rows, **hot).tokens) < mean_log_p(base.tokens)
    patient, hasty = (write(process, rows, patience=n, **hot).calls_per_row.double().mean() for n in (8, 1))
    assert hasty < patient - 1
    times: list[float] = []
    sampler = text_sampler("self_correction", steps=1, corrections=1, correction_time=0.2)
    sampler.sample(denoiser(process, times), torch.full((4, 2), MASK), process=process, generator=rows(4))
    assert times == pytest.approx([1.0, 0.2])


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_a_text_is_finished_after_as_many_corrections_without_a_rise_as_patience_says(patience, rows):
    """The model always prefers the other word: the first correction is a rise from 0 to 1, and no later one is."""
    other = TextDenoiser.dense(
        lambda tokens, t: 20.0 * torch.nn.functional.one_hot((tokens == 0).long(), V).float(),
        mask_id=MASK, pad_id=PAD, vocab_size=V + 2,
    )  # fmt: skip
    sampler = text_sampler("self_correction", steps=1, corrections=9, correction_temperature=0.0, patience=patience)
    found = sampler.sample(other, torch.tensor([[MASK]]), process=uniform(), generator=rows(1))
    assert found.model_calls == 1 + 1 + patience
    assert found.steps.tolist() == [[1 + patience]]


def test_it_is_refused_where_written_tokens_are_final(rows):
    for process in (AbsorbingConfig().build(**IDS), gidd(0.0)):
        with pytest.raises(SamplingError, match=rf"'self_correction' needs a process .* trained with '{process.kind}'"):
            write(process, rows, count=2)
    with pytest.raises(SamplingError, match="has no diffusion process"):
        text_sampler("self_correction").sample(
            denoiser(uniform()), torch.full((1, 2), MASK), process=None, generator=rows(1)
        )
    with pytest.raises(ConfigurationError, match="correction_time must be at most 1"):
        text_sampler("self_correction", correction_time=1.5)
