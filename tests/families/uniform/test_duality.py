"""The transformation operator: closed forms for two words, and the argmax of latents is uniform noise."""

import math

import pytest
import torch

from mm_ldlm.families.uniform.duality import add_noise, gamma_of, keep_probability


def test_of_two_words_the_operator_is_an_error_function() -> None:
    """Of two words P = Φ(μ/√2), so that α = erf(μ/2) with μ = e^(−γ/2)."""
    gamma = torch.linspace(-3, 6, 40, dtype=torch.float64)
    alpha, slope = keep_probability(gamma, 2)
    mu = torch.exp(-gamma / 2)
    torch.testing.assert_close(alpha, torch.erf(mu / 2), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(slope, -mu / 2 * torch.exp(-mu.square() / 4) / math.sqrt(math.pi), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("words", [3, 1000, 50_257])
def test_the_slope_is_the_derivative_of_the_operator_and_gamma_its_inverse(words: int) -> None:
    gamma = torch.linspace(-4, 0, 40, dtype=torch.float64)
    (alpha, slope), step = keep_probability(gamma, words), 1e-5
    difference = keep_probability(gamma + step, words)[0] - keep_probability(gamma - step, words)[0]
    torch.testing.assert_close(slope, difference / (2 * step), rtol=1e-6, atol=1e-9)
    assert bool((alpha.diff() < 0).all())
    assert gamma_of(float(alpha[20]), words) == pytest.approx(float(gamma[20]), abs=1e-9)


@pytest.mark.parametrize("words", [2, 5])
def test_the_argmax_of_latents_is_a_uniform_random_word(words: int) -> None:
    count, gamma = 100_000, torch.tensor(0.4, dtype=torch.float64)
    own_BL, draw = torch.full((count, 1), 1), torch.Generator().manual_seed(0)
    latents_BLN = add_noise(own_BL, torch.randn(count, 1, words, generator=draw), gamma.expand(count))
    alpha = float(keep_probability(gamma, words)[0])
    expected_N = (1 - alpha) / words + alpha * (torch.arange(words) == 1)
    found_N = torch.bincount(latents_BLN.argmax(2)[:, 0], minlength=words) / count
    assert bool(((found_N - expected_N).abs() < 5 * (expected_N * (1 - expected_N) / count).sqrt()).all())
