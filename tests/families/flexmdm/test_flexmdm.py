"""FlexMDM against enumeration: with the exact posterior as the model, samples, bound and loss are those of the data."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson as reference
from torch import Tensor
from torch.nn.functional import one_hot, pad

from mm_ldlm.core import SamplingError, parse
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.flexmdm.objective import FlexGeneration, FlexMDMConfig
from mm_ldlm.families.flexmdm.process import Insertion, InsertionConfig, insertion_entropy, noise
from mm_ldlm.families.flexmdm.sampler import InsertionSampler, poisson
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch
from mm_ldlm.sampling.denoising import Canvas, TextSample

PAD, MASK, FIRST = 0, 1, 4
SHAPE = DataShape(vocab_size=5, pad_id=PAD, mask_id=MASK, max_length=4)
LAW = {(2,): 0.2, (3, 2): 0.3, (3, 3): 0.1, (2, 2, 3): 0.25, (2, 3, 2): 0.15}
ENTROPY = -sum(p * math.log(p) for p in LAW.values())
SCHEDULES: list[dict[str, Any]] = [{}, {"schedule": {"kind": "geometric"}, "insertion_schedule": {"kind": "cosine"}}]
each_schedule = pytest.mark.parametrize("schedules", SCHEDULES, ids=["linear", "others"])


def process_of(schedules: dict[str, Any]) -> Insertion:
    return parse(InsertionConfig, schedules, at="process").build(SHAPE)


def rows(count: int, *, seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(count))


def texts(tokens_BL: Tensor) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != PAD) for row in tokens_BL.tolist()]


def padded(some: list[tuple[int, ...]], width: int = SHAPE.max_length) -> Tensor:
    return torch.tensor([[*text, *[PAD] * (width - len(text))] for text in some])


class Exact:
    """Posterior of the missing tokens and of the masks given a noisy text, by enumeration of what it can come from."""

    def __init__(self, law: dict[tuple[int, ...], float], process: Insertion, *, shift: float = 0.0) -> None:
        self.law, self.process, self.shift = law, process, shift
        self.origins = functools.cache(self._origins)

    def _origins(self, state: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Probability and number of missing tokens (E,), words (E, k, V) and gaps (E, k + 1) of every origin."""
        found = []
        for text, p in self.law.items():
            for places in itertools.combinations(range(len(text)), len(state)):
                words = [text[place] for place in places]
                if all(token in (MASK, word) for token, word in zip(state, words, strict=True)):
                    gaps = [b - a - 1 for a, b in itertools.pairwise((-1, *places, len(text)))]
                    found.append((p, len(text) - len(state), words, gaps))
        p_E, missing_E, words_Ek, gaps_EK = (torch.tensor(column) for column in zip(*found, strict=True))
        return p_E.double(), missing_E, one_hot(words_Ek.long(), 5).double(), gaps_EK.double()

    def predict(self, tokens_AL: Tensor, t_A: Tensor, asked_AL: Tensor) -> tuple[Tensor, Tensor]:
        A, L = tokens_AL.shape
        probs_ALV, counts_AP = torch.ones(A, L, 5).double(), torch.zeros(A, L + 1).double()
        level_A = noise(self.process.insertion, t_A.double())
        states_SL, which_A = pad(tokens_AL, (0, 1)).unique(dim=0, return_inverse=True)
        for number, state in enumerate(texts(states_SL)):
            here = which_A == number
            try:
                p_E, missing_E, words_EkV, gaps_EK = self.origins(state)
            except ValueError:  # a text of the sampler that no text of the data contains
                continue
            weight_nE = p_E * level_A[here][:, None] ** missing_E
            weight_nE = weight_nE / weight_nE.sum(dim=1, keepdim=True)
            probs_ALV[here, : len(state)] = torch.einsum("ne,ekv->nkv", weight_nE, words_EkV)
            counts_AP[here, : len(state) + 1] = weight_nE @ gaps_EK
        return probs_ALV[asked_AL].log().clamp_min(-60).float(), counts_AP.clamp_min(1e-40).log() + self.shift


def write(exact: Exact, canvas_BL: Tensor, *, seed: int = 0, **settings: Any) -> TextSample:
    canvas = Canvas(
        denoise=exact.predict, process=exact.process, tokens=canvas_BL, generator=rows(len(canvas_BL), seed=seed),
        window=SHAPE.max_length,
    )  # fmt: skip
    return InsertionSampler(**settings).sample(canvas)


def distance(found: list[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Total variation of the frequencies of texts from a distribution."""
    return sum(abs(found.count(text) / len(found) - law.get(text, 0.0)) for text in {*found, *law}) / 2


@pytest.mark.parametrize(
    ("schedules", "settings"),
    [
        (SCHEDULES[0], {}), (SCHEDULES[1], {}), (SCHEDULES[0], {"insertion": "rounded"}),
        (SCHEDULES[0], {"order": "confidence"}), (SCHEDULES[0], {"order": "margin"}),
    ],
)  # fmt: skip
def test_small_steps_draw_the_texts_of_the_data(schedules: dict[str, Any], settings: dict[str, Any]) -> None:
    exact, canvas_BL = Exact(LAW, process_of(schedules)), torch.full((1200, 4), MASK)
    coarse, fine = (distance(texts(write(exact, canvas_BL, steps=s, **settings).tokens), LAW) for s in (5, 48))
    assert fine < min(0.09, coarse / 3)


@pytest.mark.parametrize(("order", "first"), [("confidence", 0), ("margin", 1)])
def test_the_most_probable_mask_or_the_one_of_the_largest_margin_comes_first(order: str, first: int) -> None:
    """Both masks of a text are inserted in step 0; step 1 unmasks one of them, or both, or none."""
    log_x0_2V = torch.tensor([[0.0, 0.0, 0.50, 0.48, 0.02], [0.0, 0.0, 0.45, 0.30, 0.25]]).log()
    asked = list[Tensor]()

    def predict(tokens_AL: Tensor, t_A: Tensor, asked_AL: Tensor) -> tuple[Tensor, Tensor]:
        return log_x0_2V[asked_AL.nonzero()[:, 1]], torch.full((len(tokens_AL), tokens_AL.shape[1] + 1), 5.0)

    made = InsertionSampler(order=order, steps=3).sample(
        Canvas(
            denoise=predict, process=process_of({}), tokens=torch.full((1000, 2), MASK), generator=rows(1000),
            observe=lambda tokens_BW, asked_BW, _: asked.append(asked_BW),
        )
    )  # fmt: skip
    both_B2 = next(asked_BW for asked_BW in asked if bool(asked_BW.any()))
    steps_N2 = made.steps[both_B2.all(dim=1) & (made.steps[:, 0] != made.steps[:, 1])]
    assert len(steps_N2) > 50
    assert bool((steps_N2.argmin(dim=1) == first).all())


def test_gaps_between_given_tokens_are_filled_as_the_data_do() -> None:
    """Every text begins with one token, so that nothing can be missing in the gap before it, which is closed."""
    law = {(FIRST, *text): p for text, p in LAW.items()}
    sample = write(Exact(law, process_of({})), torch.tensor([[FIRST, MASK]]).expand(3000, -1), steps=72)
    assert distance(texts(sample.tokens), law) < 0.09
    assert bool((sample.steps[:, 0] == -1).all())


@each_schedule
def test_the_bound_at_the_exact_posterior_is_the_entropy_of_the_data(schedules: dict[str, Any]) -> None:
    process, total = process_of(schedules), 20_000
    every = [text for text, p in LAW.items() for _ in range(round(p * total))]

    def bound(shift: float) -> Tensor:
        made = FlexGeneration(torch.nn.Identity(), SHAPE, process)
        made.predict = Exact(LAW, process, shift=shift).predict
        found = made.likelihood(padded(every), latents_Bd=None, draws=4, generator=rows(len(every)))
        return found.nll_KB.mean(dim=0)

    best_B = bound(0.0)
    error = float(best_B.std()) / len(every) ** 0.5
    assert float(best_B.mean()) == pytest.approx(ENTROPY, abs=4 * error)
    assert error < 0.03
    assert all(float((bound(shift) - best_B).mean()) > 0.02 for shift in (-0.4, 0.4))


@each_schedule
def test_the_loss_of_training_at_the_exact_posterior_is_the_bound_without_its_constant(
    schedules: dict[str, Any],
) -> None:
    objective = parse(FlexMDMConfig, {"process": schedules}, at="objective").build(SHAPE)
    every = padded([text for text, p in LAW.items() for _ in range(round(p * 20_000))])
    exact, generator, length_B = Exact(LAW, objective.process), rows(len(every)), (every != PAD).sum(dim=1)
    order_B = generator.fork("order").uniform().argsort()
    batch = Batch(every, every != PAD, {}, order_B, order_B, len(every), int(length_B.sum()))

    def model(tokens_BL: Tensor, *, t_B: Tensor, logits_at: Tensor, **_: Tensor) -> tuple[Tensor, Tensor]:
        return exact.predict(tokens_BL, t_B, logits_at)

    losses = objective(model, batch, generator, kind="text", step=0)
    total = sum(float(losses[name][0]) for name in objective.weights) / len(every)
    constant = float(insertion_entropy(SHAPE.max_length)[length_B].mean())
    assert total == pytest.approx(ENTROPY + constant, abs=0.05)


@given(st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=9), min_size=1, max_size=4), st.floats(0.01, 1))
def test_a_noisy_text_and_its_gaps_add_up_to_the_text(some: list[list[int]], t: float) -> None:
    tokens_BL = padded([tuple(text) for text in some], 9)
    partial = process_of({}).delete(tokens_BL, tokens_BL != PAD, torch.full((len(some),), t), rows(len(some)))
    for text, noisy, targets, gaps in zip(some, *(value.tolist() for value in partial), strict=True):
        places = list(itertools.accumulate(gaps, lambda at, gap: at + gap + 1))
        kept = [token for token in noisy if token != PAD]
        assert noisy == kept + [PAD] * (9 - len(kept))
        assert [text[place] for place in places[: len(kept)]] == targets[: len(kept)]
        assert all(token in (MASK, target) for token, target in zip(kept, targets, strict=False))
        assert sum(gaps) + len(kept) == len(text)


def test_a_row_grows_by_itself_and_only_where_it_has_masks() -> None:
    exact = Exact({(2, 3, 2, 3, 3): 1.0}, process_of({}), shift=1.0)
    canvas_BL = torch.tensor([[2, MASK, 3, PAD], [MASK, MASK, PAD, PAD], [2, 3, PAD, PAD], [MASK] * 4])
    made = write(exact, canvas_BL, steps=6)
    first, second, third, fourth = texts(made.tokens)
    assert (first[0], first[-1], third) == (2, 3, (2, 3))
    assert len(second) <= 2 < len(fourth) <= SHAPE.max_length
    assert MASK not in (*first, *second, *fourth)
    assert int(made.calls_per_row[2]) == 0
    assert bool((made.steps[made.tokens == PAD] == -1).all())
    with pytest.raises(SamplingError, match=r"guidance 0\.5"):
        write(exact, canvas_BL, guidance=0.5)
    calls = [write(exact, canvas_BL, steps=2, seed=seed).model_calls for seed in range(9)]
    assert max(calls) == InsertionSampler(steps=2).most_calls(4)
    assert int(made.calls_per_row.max()) <= made.model_calls <= InsertionSampler(steps=6).most_calls(4)
    alone = InsertionSampler(steps=6).sample(
        Canvas(denoise=exact.predict, process=exact.process, tokens=canvas_BL[3:], generator=rows(4).select(torch.tensor([3])))
    )  # fmt: skip
    assert texts(alone.tokens) == [fourth]


@given(st.floats(0, 20), st.floats(1e-6, 1 - 1e-6))
def test_poisson_numbers_invert_their_distribution(rate: float, uniform: float) -> None:
    found = poisson(torch.tensor([rate]).double(), torch.tensor([uniform]).double(), most=200)
    below, at = reference.cdf(int(found) - 1, rate), reference.cdf(int(found), rate)
    assert below - 1e-9 <= uniform <= at + 1e-9
