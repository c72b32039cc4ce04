"""Ψ-samplers against enumerated distributions, and the older samplers that they contain."""

from typing import Any

import pytest
import torch
from tests.diffusion.enumeration import JOINT, TEXTS, VOCABULARY, Enumeration, W
from tests.families.uniform.cases import LAWS
from tests.sampling.toys import PROCESSES, Exact, agrees, build, canvas, constant, context, on, rows, sample, watching
from torch import Tensor

from mm_ldlm.core import ConfigurationError, SamplingError
from mm_ldlm.diffusion.masked import max_remask_ratio, remask_unmask_probability
from mm_ldlm.families.uniform.uniform import UniformConfig
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser
from mm_ldlm.sampling.registry import text_sampler

EXACT = Exact(torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64))


@pytest.mark.parametrize("process", [name for name in PROCESSES if not text_sampler("psi").refusal(build(name).traits)])
@pytest.mark.parametrize(
    "settings",
    [{"eta": 0.5}, {"eta": 1.0}, {"eta": 0.5, "hold": 0.2, "t_on": 0.8, "t_off": 0.3}, {"eta": 0.1, "hold": 0.5}],
)
def test_a_single_word_has_its_distribution_in_any_number_of_steps(process: str, settings: dict[str, Any]) -> None:
    """The exact x_θ of one word is its distribution, at every time and whatever was drawn before."""
    count, p = 6000, [0.6, 0.3, 0.1]
    made = text_sampler("psi", steps=5, **settings).sample(on(constant(p), canvas(*[1] * count), process))
    agrees(torch.bincount(made.tokens[:, 0], minlength=3) / count, torch.tensor(p), count=count)
    if process == "absorbing":  # where no word is noise
        torch.testing.assert_close(made.log_probs[:, 0], torch.tensor(p).log()[made.tokens[:, 0]])


def with_uniform_noise(steps: int, eta: float) -> Tensor:
    """The distribution of texts (N,) after all steps of the best model of `JOINT`, by its transitions (N, N)."""
    found = Enumeration(UniformConfig().build(VOCABULARY), LAWS["uniform"])
    now_N = torch.full((len(TEXTS),), 1 / len(TEXTS), dtype=torch.float64)
    at = TEXTS - 1
    for step in range(steps):
        t, s = (torch.tensor(1 - number / steps, dtype=torch.float64) for number in (step, step + 1))
        others_NLW, _, own_NLW = found.seen(TEXTS, t.expand(len(TEXTS)))
        clean_NLW = others_NLW * own_NLW / (others_NLW * own_NLW).sum(-1, keepdim=True)
        if s > 0:
            q_s, q_t, q_ts = (
                q[:W, :W]
                for q in (found.law.marginal(found.process, s), found.law.marginal(found.process, t),
                          found.law.transition(found.process, s, t))
            )  # fmt: skip
            # q(x_s | x_t, x_0) (x_0, x_s, x_t), averaged over x_0
            bridge = q_s[:, :, None] * q_ts[None] / q_t[:, None]
            predicted_NLW = torch.einsum("nlw,wsnl->nls", clean_NLW, bridge[:, :, at])
            clean_NLW = (1 - eta) * predicted_NLW + eta * clean_NLW @ q_s
        now_N = now_N @ (clean_NLW[:, 0, at[:, 0]] * clean_NLW[:, 1, at[:, 1]])
    return now_N


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
def test_samples_with_uniform_noise_have_the_enumerated_distribution(eta: float) -> None:
    found, count = Enumeration(UniformConfig().build(VOCABULARY), LAWS["uniform"]), 10_000

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        return found.output(tokens_AL, t_A)[asked_AL].float()

    masks_BL = torch.full((count, 2), VOCABULARY.mask_id)
    made = text_sampler("psi", steps=4, eta=eta).sample(
        Canvas(denoise=TextDenoiser(logits=logits), process=found.process, tokens=masks_BL, generator=rows(count))
    )
    fractions_N = (made.tokens[:, None] == TEXTS).all(-1).double().mean(0)
    agrees(fractions_N, with_uniform_noise(4, eta), count=count)


@pytest.mark.parametrize(("kind", "eta"), [("cap", 0.3), ("rescale", 0.45)])
def test_with_masks_it_is_remdm(kind: str, eta: float) -> None:
    """The distribution of ReMDM with σ ≤ 1 − α_s, by enumeration."""
    steps, count = 4, 10_000
    alpha = build().mask_schedule.alpha(torch.linspace(1, 0, steps + 1).double())
    largest = max_remask_ratio(alpha[:-1], alpha[1:])
    sigma = torch.minimum(largest.clamp_max(eta) if kind == "cap" else eta * largest, 1 - alpha[1:])
    unmask = remask_unmask_probability(alpha[:-1], alpha[1:], sigma)
    sigma[-1], unmask[-1] = 0.0, 1.0
    expected = EXACT.after(steps, unmask=lambda step: float(unmask[step]), remask=lambda step: float(sigma[step]))
    made = sample("psi", EXACT.denoiser(), canvas(*[2] * count), steps=steps, correction=kind, eta=eta)
    agrees(EXACT.frequencies(made.tokens), expected, count=count)


@pytest.mark.parametrize("process", ["absorbing", "uniform", "gidd"])
@pytest.mark.parametrize("correction", ["constant", "cap"])
def test_without_corrections_it_is_ancestral_sampling(process: str, correction: str) -> None:
    if process == "gidd" and correction != "constant":
        with pytest.raises(SamplingError):
            text_sampler("psi", correction=correction).sample(on(context(), canvas(3), process))
        return
    ours, plain = (
        text_sampler(kind, steps=6, **options).sample(on(context(timed=True), canvas(9, 5, 7), process))
        for kind, options in (("psi", {"correction": correction, "eta": 0.0}), ("ancestral", {}))
    )
    assert torch.equal(ours.tokens, plain.tokens)
    torch.testing.assert_close(ours.log_probs, plain.log_probs)


def test_steps_between_two_times_keep_theirs_and_correct() -> None:
    """The model receives the held time; before and after, no written word is masked again."""
    times, returned, before = list[float](), list[int](), list[Tensor]()

    def see(tokens_AL: Tensor, t_A: Tensor) -> None:
        if before:
            returned.append(int(((before[-1] != 8) & (tokens_AL == 8)).sum()))
        times.append(float(t_A[0]))
        before.append(tokens_AL)

    settings: dict[str, Any] = {"steps": 20, "eta": 0.5, "t_on": 0.7, "t_off": 0.3, "hold": 0.4}
    text_sampler("psi", **settings).sample(on(watching(see), canvas(*[400] * 4), "absorbing"))
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(0.4 * 0.05 / 0.3), "falls evenly to 0 at the end"
    inside = [step for step in range(20) if 0.3 < 1 - step / 20 <= 0.7]
    assert [times[step] for step in inside] == pytest.approx([0.4] * len(inside))
    assert [step for step, count in enumerate(returned) if count] == inside
    with pytest.raises(ConfigurationError):
        text_sampler("psi", t_on=0.2, t_off=0.2)


def test_enumerated_corrections_converge_to_the_distribution_of_the_texts() -> None:
    distances = [float((with_uniform_noise(steps, 0.3) - JOINT.flatten()).abs().sum()) for steps in (4, 32, 256)]
    assert distances[0] > 2 * distances[1] > 4 * distances[2]
