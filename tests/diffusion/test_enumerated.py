"""Every text process on texts that can be enumerated: noise, likelihood bound, reverse steps and samples are exact."""

from typing import Any

import pytest
import torch
from tests.components import CASES, PROCESSES, labelled, process_of
from tests.diffusion.enumeration import JOINT, NLL, TEXTS, WORDS, Enumeration
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator

ENTROPY = float((JOINT.flatten() * NLL).sum())
each_process = pytest.mark.parametrize(
    ("kind", "options"), **labelled(case for case in PROCESSES if case[0] in CASES.laws)
)
each_step = pytest.mark.parametrize("step", ["reverse_step", "score_step"])


def enumeration_of(kind: str, options: dict[str, Any]) -> Enumeration:
    return Enumeration(process_of(kind, options), CASES.laws[kind])


@each_process
def test_the_law_of_a_process_is_a_markov_chain(kind: str, options: dict[str, Any]) -> None:
    """The closed forms that the other tests rely on."""
    found = enumeration_of(kind, options)
    s, t = (torch.tensor(x, dtype=torch.float64) for x in (0.3, 0.8))
    step_II = found.law.transition(found.process, s, t)
    marginals = [found.law.marginal(found.process, x) for x in (s, t)]
    torch.testing.assert_close(marginals[0] @ step_II, marginals[1], atol=1e-9, rtol=0)
    torch.testing.assert_close(step_II.sum(1), torch.ones(len(step_II)).double())
    assert float(step_II.min()) > -1e-12


@each_process
@pytest.mark.parametrize("t", [0.05, 0.5, 0.95])
def test_noise_has_the_distribution_of_its_law(kind: str, options: dict[str, Any], t: float) -> None:
    found, copies = enumeration_of(kind, options), 30_000
    tokens_BL = WORDS.repeat(copies, 1)
    noisy_BL = found.process.corrupt(
        tokens_BL, torch.ones_like(tokens_BL, dtype=torch.bool), torch.full((copies,), t),
        RowGenerator(0, torch.arange(copies)),
    )  # fmt: skip
    expected_WI = found.law.marginal(found.process, torch.tensor(t, dtype=torch.float64))
    fractions_WI = (noisy_BL[..., None] == found.ids_I).double().mean(0)
    deviation_WI = (expected_WI * (1 - expected_WI) / copies).sqrt()
    assert bool(((fractions_WI - expected_WI).abs() <= 5 * deviation_WI + 1e-6).all())


@each_process
def test_the_bound_of_the_best_model_is_tight_for_every_text(kind: str, options: dict[str, Any]) -> None:
    """−log p(x_0), unless the process itself leaves a gap; and any other model is worse."""
    found, copies = enumeration_of(kind, options), 400
    tokens_BL = TEXTS.repeat(copies, 1)

    def mean_bound(change: float) -> tuple[Tensor, Tensor]:
        def predict(noisy_BL: Tensor, t_B: Tensor, scored_BL: Tensor) -> Tensor:
            return found.output(noisy_BL, t_B)[scored_BL].clamp_min(-60).float() * change

        draws = found.process.nelbo(
            predict, tokens_BL, tokens_BL > 0, draws=8, generator=RowGenerator(0, torch.arange(len(tokens_BL)))
        )
        each_KN = draws.nll_KB.mean(0).view(copies, len(TEXTS))
        return each_KN.mean(0), each_KN.std(0) / copies**0.5

    bound_N, error_N = mean_bound(1.0)
    assert bool(((bound_N - found.law.bound(found.process)).abs() < 4.5 * error_N + 1e-3).all())
    assert float((JOINT.flatten() * error_N).sum()) < 0.12 * ENTROPY
    assert float((JOINT.flatten() * (mean_bound(0.5)[0] - bound_N)).sum()) > 0.02


@each_process
def test_the_integrand_of_the_bound_is_exact(kind: str, options: dict[str, Any]) -> None:
    """By quadrature, without sampling; what is left is what the schedule keeps at t = 1."""
    found = enumeration_of(kind, options)
    kept = float(found.law.marginal(found.process, torch.ones(()).double()).diagonal().max())
    if found.law.continuous:
        torch.testing.assert_close(found.integral(), NLL, atol=0, rtol=5e-3 + 1.5 * kept)


@each_process
@each_step
@pytest.mark.parametrize(("s", "t"), [(0.4, 0.7), (0.0, 0.3), (0.2, 1.0), (0.0, 1.0)])
def test_pitfall_32_a_reverse_step_draws_from_the_exact_posterior(
    kind: str, options: dict[str, Any], step: str, s: float, t: float
) -> None:
    """p(x_s of a token | x_t of both) for every x_t; drawn by a grid of uniform numbers, without sampling error."""
    found, grid = enumeration_of(kind, options), 64
    possible_S = found.chances(t) > 1e-9
    states_SL, expected_SI = found.states_SL[possible_S], found.posterior(s, t)[possible_S]
    cells = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    uniform_M2 = torch.cartesian_prod(cells, cells).repeat(len(states_SL), 1)
    noisy_M = states_SL[:, 0].repeat_interleave(grid**2)
    t_M, s_M = (torch.full(noisy_M.shape, x, dtype=torch.float64) for x in (t, s))
    output_SV = found.output(states_SL, torch.full((len(states_SL),), t))[:, 0].clamp_min(-60)
    given_MV = output_SV.float().repeat_interleave(grid**2, dim=0)
    if step == "reverse_step":
        given_MV = found.process.log_x0(found.process.x0_logits(given_MV, noisy_M, t_M), noisy_M)
    drawn_M = getattr(found.process, step)(given_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)
    fractions_SI = (drawn_M.view(len(states_SL), -1, 1) == found.ids_I).double().mean(1)
    torch.testing.assert_close(fractions_SI, expected_SI, atol=3 / grid, rtol=0)
