"""CANDI on texts of two words that can be enumerated: noise, loss, bound and samples of the best model, and limits."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.components import SHAPE, random_batch
from tests.diffusion.enumeration import JOINT, MASK, NLL, TEXTS, WORDS, V, W
from torch import Tensor

from mm_ldlm.core import ConfigurationError, SamplingError, parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.candi.objective import Candi, CandiGeneration
from mm_ldlm.models.base import MODELS, TextOutput
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.sampling.ancestral import reverse_process
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser
from mm_ldlm.sampling.registry import text_sampler

ENTROPY = float((JOINT.flatten() * NLL).sum())
LARGE = {"min_rank": 0.4999, "max_rank": 0.49999}
"""Ranks at which z contains nothing"""


class Best:
    """The model that answers with p(x_0 given the tokens and z of the other position), found from its input."""

    def __init__(self, objective: Candi, *, change: float = 1.0) -> None:
        self.noise, self.process, self.change = objective.noise, objective.process, change

    def __call__(self, inputs_BLI: Tensor, *, valid_BL: Tensor, t_B: Tensor, logits_at: Tensor | None) -> Any:
        variance_B11 = self.noise.std(self.process.mask_probability(t_B.double())).square()[:, None, None]
        masked_BL1, words_BLW = inputs_BLI[..., MASK, None] > 0.5, inputs_BLI[..., WORDS].double()
        z_BLW = words_BLW * (1 + W * variance_B11).sqrt()
        evidence_BLW = torch.where(masked_BL1, z_BLW / variance_B11, words_BLW.log())
        others_BLW = [
            (JOINT.T.log() + evidence_BLW[:, 1, :, None]).logsumexp(1),
            (JOINT.log() + evidence_BLW[:, 0, :, None]).logsumexp(1),
        ]
        logits_BLV = torch.full((*inputs_BLI.shape[:2], V), 9.0)
        logits_BLV[..., WORDS] = torch.stack(others_BLW, dim=1).float()
        logits_BLV = (logits_BLV * self.change).clamp_min(-60)
        return TextOutput(logits_BLV if logits_at is None else logits_BLV[logits_at], torch.zeros(SHAPE.max_length))


def objective_of(**options: Any) -> Candi:
    made: Candi = parse_kind(OBJECTIVES, {"kind": "candi", **options}, at="objective").build(SHAPE)
    return made


def generation(objective: Candi, model: Any = None) -> CandiGeneration:
    return objective.generative_model(Best(objective) if model is None else model)  # type: ignore[return-value, arg-type]


def rows(count: int) -> RowGenerator:
    return RowGenerator(0, torch.arange(count))


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_a_wrong_word_is_nearer_to_z_as_often_as_the_rank_says(ratio: float) -> None:
    noise, count = objective_of().noise, 40_000
    tokens_BL, ratio_B = torch.full((count, 2), int(WORDS[1])), torch.full((count,), ratio)
    z_BLI = noise.draw(tokens_BL, ratio_B, rows(count))
    wrong = (z_BLI[..., WORDS] > z_BLI[..., WORDS[1], None]).sum(-1).double().mean() / (W - 1)
    assert float(wrong) == pytest.approx(float(noise.rank(ratio_B[0])), abs=5e-3)
    inputs_BLI = noise.inputs(
        tokens_BL.index_fill(1, torch.tensor(1), MASK), torch.tensor([False, True]), z_BLI, ratio_B
    )
    expected_LI = torch.nn.functional.one_hot(torch.tensor([WORDS[1], MASK]), SHAPE.num_ids).float()
    scale = (1 + W * noise.std(ratio_B[0]) ** 2) ** -0.5
    expected_LI[1, WORDS[1]] = scale
    torch.testing.assert_close(inputs_BLI.mean(0), expected_LI, atol=0.02, rtol=0)
    spread_I = (noise.std(ratio_B[0]) * scale).float() * noise.word_I
    torch.testing.assert_close(
        inputs_BLI.std(0), torch.stack([torch.zeros_like(spread_I), spread_I]), atol=0.02, rtol=0
    )


def test_the_weight_of_the_error_is_the_slope_of_the_precision() -> None:
    noise, ratio_K = objective_of().noise, torch.linspace(0, 1, 9, dtype=torch.float64).requires_grad_()
    (slope_K,) = torch.autograd.grad(noise.std(ratio_K).pow(-2).sum(), ratio_K)
    torch.testing.assert_close(noise.error_weight(ratio_K.detach()), -slope_K / 2)


def test_the_training_loss_is_least_for_the_best_model() -> None:
    objective = objective_of()
    tokens_BL = TEXTS[
        torch.multinomial(JOINT.flatten(), 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    ]
    batch = dataclasses.replace(
        random_batch(), tokens_BL=tokens_BL, valid_BL=tokens_BL > 0, fields={}, global_size=len(tokens_BL),
        examples_B=torch.arange(len(tokens_BL)), position_B=torch.arange(len(tokens_BL)),
    )  # fmt: skip
    least, *others = (
        float(
            objective(Best(objective, change=change), batch, rows(len(tokens_BL)), kind="text", step=0)["text_loss"][0]
        )
        for change in (1.0, 0.7, 1.4)
    )
    assert least < min(others)


# -- the bound ---------------------------------------------------------------------------------------------------------


def bounds(objective: Candi, *, copies: int = 700, change: float = 1.0) -> tuple[Tensor, Tensor]:
    """The NELBO (N,) of a model and its standard error."""
    tokens_BL = TEXTS.repeat(copies, 1)
    found = generation(objective, Best(objective, change=change)).likelihood(
        tokens_BL, latents_Bd=None, draws=8, generator=rows(len(tokens_BL))
    )
    each_KN = found.nll_KB.mean(0).view(copies, len(TEXTS))
    return each_KN.mean(0), each_KN.std(0) / copies**0.5


def prior_gap(objective: Candi) -> float:
    """D_KL(q(z at m = 1) ‖ N(0, σ²)) of the two positions together, by sampling."""
    count, variance = 100_000, float(objective.noise.std(torch.ones(())) ** 2)
    tokens_BL = TEXTS[
        torch.multinomial(JOINT.flatten(), count, replacement=True, generator=torch.Generator().manual_seed(0))
    ]
    z_BLW = objective.noise.draw(tokens_BL, torch.ones(count), rows(count))[..., WORDS].double()
    ratio_BLW = ((z_BLW - 0.5) / variance).exp()
    return float(torch.einsum("bv,vw,bw->b", ratio_BLW[:, 0], JOINT, ratio_BLW[:, 1]).log().mean())


@pytest.mark.parametrize("ranks", [{}, {"min_rank": 0.01, "max_rank": 0.1}, LARGE], ids=["default", "small", "large"])
def test_the_bound_of_the_best_model_exceeds_the_entropy_by_the_divergence_of_the_prior(
    ranks: dict[str, float],
) -> None:
    """At small ranks the training loss is far below the entropy, and the bound is not."""
    objective = objective_of(**ranks)
    bound_N, error_N = bounds(objective)
    assert bool((bound_N > NLL - 4.5 * error_N - 1e-3).all())
    mean, error = float((JOINT.flatten() * bound_N).sum()), float((JOINT.flatten() * error_N).norm())
    assert mean == pytest.approx(ENTROPY + prior_gap(objective), abs=4 * error + 0.01)
    assert float((JOINT.flatten() * bounds(objective, change=0.5)[0]).sum()) > mean + 0.02


# -- samples -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_rank", [0.05, 0.3])
def test_samples_of_the_best_model_follow_the_distribution(min_rank: float) -> None:
    """From a σ at which N(0, σ²) is the distribution of z."""
    objective, count = objective_of(min_rank=min_rank, max_rank=0.49), 5000
    canvas_BL = torch.full((count, 2), MASK)
    made = generation(objective).write(
        canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=text_sampler("candi", steps=64), generator=rows(count)
    )
    found_N = (made.tokens[:, None] == TEXTS).all(-1).double().mean(0)
    assert float((found_N - JOINT.flatten()).abs().sum() / 2) < 0.03


def test_a_model_that_ignores_z_is_sampled_as_in_masked_diffusion() -> None:
    objective, canvas_BL = objective_of(**LARGE), torch.full((50, 2), MASK)
    table_IV = torch.randn(2, SHAPE.num_ids, V, generator=torch.Generator().manual_seed(0))

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        return torch.stack([table_IV[0, tokens_AL[:, 1]], table_IV[1, tokens_AL[:, 0]]], dim=1)[asked_AL]

    denoiser = generation(objective).text_denoiser(None, rows(50))
    blind = dataclasses.replace(denoiser, predict=lambda tokens, t, z, asked: logits(tokens, t, t, asked))
    sampler = text_sampler("candi", steps=4)
    found, plain = (
        write(Canvas(denoise=denoise, process=objective.process, tokens=canvas_BL, generator=rows(50)))
        for write, denoise in (
            (sampler.sample, blind),
            (lambda canvas: reverse_process(canvas, sampler), TextDenoiser(logits=logits)),
        )
    )
    assert torch.equal(found.tokens, plain.tokens)
    assert torch.equal(found.calls_per_row, plain.calls_per_row)


def test_z_begins_as_noise_of_no_word_and_follows_the_filtered_estimate() -> None:
    objective, seen = objective_of(), list[Tensor]()

    def predict(tokens_AL: Tensor, t_A: Tensor, z_ALI: Tensor, asked_AL: Tensor) -> Tensor:
        seen.append(z_ALI[..., WORDS])
        assert torch.equal(z_ALI.count_nonzero(-1), seen[-1].count_nonzero(-1)), "only words have a coordinate"
        return torch.zeros(int(asked_AL.sum()), V)

    denoiser = dataclasses.replace(generation(objective).text_denoiser(None, rows(1)), predict=predict)
    canvas = Canvas(denoise=denoiser, process=objective.process, tokens=torch.full((1, 4000), MASK), generator=rows(1))
    text_sampler("candi", steps=2, temperature=0.0).sample(canvas)
    with pytest.raises(SamplingError, match=r"guidance 0\.5"):
        text_sampler("candi", guidance=0.5).sample(canvas)
    torch.testing.assert_close(seen[0].mean(1), torch.zeros(1, W), atol=0.1, rtol=0)
    at_1, at_half = (objective.noise.std(objective.process.mask_probability(torch.tensor(t))) for t in (1.0, 0.5))
    left = float(at_half / at_1)
    estimate_1LW = (seen[1] - left * seen[0]) / (1 - left)
    torch.testing.assert_close(estimate_1LW.amax(-1), torch.ones(1, 4000), atol=1e-3, rtol=0)


def test_samplers_of_texts_without_z_are_refused_before_a_run() -> None:
    config = parse_kind(OBJECTIVES, {"kind": "candi"}, at="objective")
    assert config.identity == {"process": "absorbing", "min_rank": 0.05, "max_rank": 0.25}
    with pytest.raises(ConfigurationError, match=r"0\.2 and 0\.2"):
        objective_of(min_rank=0.2, max_rank=0.2)
    found = config.capabilities(parse_kind(MODELS, {"kind": "dit"}, at="model"))
    for sampler, fits in (("candi", True), ("ancestral", False), ("confidence", False)):
        assert (found.sampler_refusal(text_sampler(sampler), "infill", given_latent=False) is None) == fits
