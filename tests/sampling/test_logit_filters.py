"""Filters of logits keep the right tokens, draws have the right frequencies, and guidance has both sides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.sampling.toys import HEAD, PROCESSES, build, on

from mm_ldlm.core import ConfigurationError, SamplingError
from mm_ldlm.diffusion import distributions
from mm_ldlm.diffusion.distributions import forbid_, normalise_
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.guidance import guide_log_probs
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens, sharpen
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.search import SearchConfig

DISTRIBUTION = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005], dtype=torch.float64)
DRAWS = 200_000


def _frequencies(draw, distribution=DISTRIBUTION, count=DRAWS):
    u = RowGenerator(7, torch.arange(1)).uniform(count)[0]
    log_probs = distribution.log().float().expand(count // 10, -1)
    tokens = torch.cat([draw_tokens(log_probs, part, draw) for part in u.split(count // 10)])
    return torch.bincount(tokens, minlength=len(distribution)).double()


def _fits(counts, distribution):
    alive = distribution > 0
    assert counts[~alive].sum() == 0
    expected = distribution[alive] / distribution[alive].sum() * counts.sum()
    assert alive.sum() == 1 or chisquare(counts[alive].numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("count", [DRAWS, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_frequencies_are_those_of_the_distribution(count):
    _fits(_frequencies(Draw(), count=count), DISTRIBUTION)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power_of_the_distribution(temperature):
    _fits(_frequencies(Draw(temperature=temperature)), DISTRIBUTION ** (1 / temperature))


def test_top_k_and_top_p_truncate_the_distribution():
    _fits(_frequencies(Draw(top_k=3)), DISTRIBUTION * torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0]))
    _fits(_frequencies(Draw(top_p=0.7)), DISTRIBUTION * torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0]))
    _fits(_frequencies(Draw(top_p=0.65 - 1e-6)), DISTRIBUTION * torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0]))
    _fits(_frequencies(Draw(top_p=1e-6)), DISTRIBUTION * torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]))


def test_rare_words_are_reached_in_float64_also_in_parts(monkeypatch):
    """A float32 uniform has no value between 1 − 2⁻²⁴ and 1, so a word of probability 1e-9 would never be drawn."""
    monkeypatch.setitem(distributions._PART, True, 2)
    log_probs_MV = torch.tensor([[1 - 1e-9, 1e-9]] * 2, dtype=torch.float64).log().float()
    assert draw_tokens(log_probs_MV, torch.tensor([1 - 1e-8, 1 - 1e-10], dtype=torch.float64), Draw()).tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 9e-5, 1.1e4, 1e30, -1.0, float("nan")])
def test_temperatures_that_float32_cannot_divide_by_are_refused(temperature: float) -> None:
    for make in (lambda t: text_sampler("confidence", temperature=t), lambda t: SearchConfig(temperature=t)):
        with pytest.raises(ConfigurationError, match="temperature"):
            make(temperature)
        assert all(make(allowed) for allowed in (0.0, 1e-4, 1e4))


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 1.0, 1e4])
def test_the_coldest_and_the_hottest_draw_never_write_a_forbidden_word(temperature):
    logits = torch.randn(64, 9, generator=torch.Generator().manual_seed(0)) * 30
    forbid_(logits, mask_id=7, pad_id=8)
    u = RowGenerator(3, torch.arange(64)).uniform()
    drawn = draw_tokens(normalise_(logits), u, Draw(temperature=temperature))
    assert int(drawn.max()) < 7
    if temperature == 1e-4:
        assert torch.equal(drawn, logits.argmax(-1))


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0.01, 0.999), st.integers(1, 30))
def test_filters_keep_the_most_probable(values, top_p, top_k):
    logits = torch.tensor([values], dtype=torch.float64)
    probabilities = logits.softmax(-1)
    kept = torch.isfinite(sharpen(logits, Draw(top_p=top_p)))
    assert kept.any()
    assert probabilities[kept].sum() >= min(top_p, 1.0) - 1e-9
    if (~kept).any():
        assert logits[kept].min() >= logits[~kept].max()
    assert probabilities[kept].sum() - probabilities[kept].min() < top_p + 1e-9
    assert torch.isfinite(sharpen(logits, Draw(top_k=top_k))).sum() >= min(top_k, len(values))
    assert torch.equal(
        sharpen(logits, Draw(temperature=0.3, top_k=top_k, top_p=top_p)),
        sharpen(sharpen(logits / 0.3, Draw(top_k=top_k)), Draw(top_p=top_p)),
    )


# -- classifier-free guidance ------------------------------------------------------------------------------------------


@given(st.floats(0, 8), st.integers(0, 1000))
def test_guidance_is_normalised_and_as_defined(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, 5, 9, generator=generator, dtype=torch.float64)
    both[:, :, 3] = -torch.inf
    conditional, unconditional = both.log_softmax(-1)
    out = guide_log_probs(conditional, unconditional, scale=scale)
    assert torch.allclose(out.exp().sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.isneginf(out[:, 3]).all()
    alive = [0, 1, 2, 4, 5, 6, 7, 8]
    raw = scale * conditional[:, alive] + (1 - scale) * unconditional[:, alive]
    assert torch.allclose(out[:, alive], raw - raw.logsumexp(-1, keepdim=True))


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_the_guided_estimate_of_a_text_has_both_sides(process, scale):
    """Scores are guided themselves; every other model by its log-probabilities. The second text has no evaluated token."""
    made, draw = build(process), torch.Generator().manual_seed(0)
    sides = [torch.randn(2, 3, HEAD, generator=draw) for _ in range(2)]
    canvas_BL, scored_BL = torch.tensor([[8, 1, 8], [8, 8, 4]]), torch.tensor([[False] * 3, [True, True, False]])
    t_B, rows_A = torch.tensor([0.25, 0.5]).double(), torch.tensor([1])
    noisy_M, t_M = canvas_BL[1, :2], t_B[[1, 1]]
    asked, seen = [], []

    def logits(side):
        def call(tokens_AL, t_A, rows_A, at_AL):
            asked.append((side, tokens_AL.tolist(), t_A.tolist(), rows_A.tolist()))
            return sides[side][rows_A][at_AL].clone()

        return call

    def log_x0(output_MV):
        return made.log_x0(made.x0_logits(output_MV.clone(), noisy_M, t_M), noisy_M)

    def guide(**more):
        denoise = TextDenoiser(logits=logits(0), **more)
        made = on(denoise, canvas_BL, process, observe=lambda *step: seen.append(step))
        return made.guided_log_x0(canvas_BL, t_B, rows_A, scored_BL, guidance=scale)

    if scale != 1.0:
        with pytest.raises(SamplingError, match=f"guidance {scale}"):
            guide()
    asked.clear()
    found_MV, output_MV = guide(unconditional=logits(1))
    assert asked == [(side, [[8, 8, 4]], [0.5], [1]) for side in range(1 if scale == 1.0 else 2)]
    both = [side[1, :2] for side in sides]
    if made.traits.predicts_scores:
        expected_MV = log_x0(scale * both[0] + (1 - scale) * both[1])
        assert torch.allclose(output_MV, scale * both[0] + (1 - scale) * both[1], atol=1e-5)
    else:
        expected_MV = guide_log_probs(log_x0(both[0]), log_x0(both[1]), scale=scale)
    assert torch.allclose(found_MV.exp(), expected_MV.exp(), atol=1e-5)
    assert seen == [(canvas_BL, scored_BL, found_MV)]
