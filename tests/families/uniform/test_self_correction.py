"""Self-correction: implausible words are drawn again, and nothing else changes."""

from typing import Any

import pytest
import torch
from tests.sampling.toys import MASK, WORDS, canvas, context, denoiser, on, rows

from mm_ldlm.core import ConfigurationError
from mm_ldlm.sampling.registry import text_sampler


def pairs() -> Any:
    """A model that knows that the second word equals the first, and prefers smaller ones."""

    def words(tokens_AL: Any, t_A: Any, rows_A: Any) -> Any:
        other_AL = tokens_AL.flip(1)
        known_AL = (other_AL < WORDS)[..., None]
        copied = torch.nn.functional.one_hot(other_AL.clamp(max=WORDS - 1), WORDS) * 4.0
        return torch.where(known_AL, copied, 0.0) - 0.2 * torch.arange(WORDS)

    return denoiser(words)


def write(process: str, *, count: int = 1500, kind: str = "self_correction", **settings: Any) -> Any:
    return text_sampler(kind, steps=1, **settings).sample(on(pairs(), canvas(*[2] * count), process))


@pytest.mark.parametrize("process", ["uniform", "gidd"])
def test_corrections_make_texts_that_agree_with_the_model(process: str) -> None:
    """One step draws the words independently; corrections find the pairs that do not fit."""
    before, after = write(process, kind="ancestral"), write(process)
    fits = [float((made.tokens[:, 0] == made.tokens[:, 1]).double().mean()) for made in (before, after)]
    assert fits[0] < 0.4
    assert fits[1] > 0.95
    changed_BL = after.tokens != before.tokens
    assert (after.steps[changed_BL] >= 1).all()
    assert (after.log_probs[changed_BL] > before.log_probs[changed_BL]).double().mean() > 0.9
    assert (changed_BL.sum(1)[before.tokens[:, 0] == before.tokens[:, 1]] == 0).double().mean() > 0.9
    assert (after.calls_per_row >= before.calls_per_row + 1).all()
    assert after.calls_per_row.double().mean() < 8, "a text that the model agrees with is finished"


def test_a_correction_writes_the_most_probable_of_the_drawn_tokens_that_differ() -> None:
    """At temperature 0 the model proposes (0, 5) for the text (5, 0), and 0 is the more probable of the two."""
    before = torch.tensor([[5, 0]])
    sampler = text_sampler("self_correction", steps=1, corrections=1, correction_temperature=0.0)
    for seed in range(200):
        first = text_sampler("ancestral", steps=1).sample(
            on(pairs(), canvas(2), "uniform", generator=rows(1, seed=seed))
        )
        if first.tokens.tolist() == before.tolist():
            after = sampler.sample(on(pairs(), canvas(2), "uniform", generator=rows(1, seed=seed)))
            assert after.tokens.tolist() == [[0, 0]]
            assert after.steps.tolist() == [[1, first.steps.tolist()[0][1]]]
            return
    pytest.fail("no text (5, 0) was drawn")


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_a_text_is_finished_when_its_agreement_has_not_risen_for_as_many_corrections(patience: int) -> None:
    """The model always prefers the other first word; it agrees with the second one before every other correction."""
    times = list[float]()

    def other(tokens_AL: Any, t_A: Any, rows_A: Any) -> Any:
        times.append(float(t_A[0]))
        changed_AL = (tokens_AL == 0).long()
        if len(times) % 2 == 0:
            changed_AL[:, 1] = tokens_AL[:, 1]
        return torch.tensor([[20.0], [15.0]]) * torch.nn.functional.one_hot(changed_AL, WORDS)

    how = {"corrections": 9, "correction_temperature": 0.0, "correction_time": 0.25, "patience": patience}
    sampler = text_sampler("self_correction", steps=1, **how)
    found = sampler.sample(on(denoiser(other), canvas(2), "uniform"))
    assert found.model_calls == 1 + 1 + patience
    assert found.steps[0, 0] == 1 + patience
    assert times[1:] == [0.25] * (1 + patience)


def test_finished_and_given_tokens_cost_nothing_and_wrong_settings_are_refused() -> None:
    tokens_BL = torch.tensor([[MASK, 2], [1, 0]])
    made = text_sampler("self_correction").sample(on(context(), tokens_BL, "gidd"))
    assert made.tokens[tokens_BL != MASK].tolist() == [2, 1, 0]
    assert int(made.calls_per_row[1]) == 0
    for wrong in (
        {"correction_time": 1.5},
        {"correction_time": 0.0},
        {"patience": 0},
        {"correction_temperature": 1e-9},
    ):
        with pytest.raises(ConfigurationError):
            text_sampler("self_correction", **wrong)
