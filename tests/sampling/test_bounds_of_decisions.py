"""Decisions of samplers exactly at their bounds, where a comparison that is off by its equality shows."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import ImageTasksConfig
from mm_ldlm.sampling.ddpm_cache import refuse_time_dependence
from mm_ldlm.sampling.threshold import entropy_prefix
from mm_ldlm.sampling.uncertainty import Draft, least_certain
from torch import Tensor

from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.ancestral import chosen_log_probs
from mm_ldlm.sampling.denoising import Prediction, TextDenoiser, word_log_probs
from mm_ldlm.sampling.lengths import how_many_lengths
from mm_ldlm.sampling.limits import COLDEST, HOTTEST, refuse_temperature
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens, filter_logits
from mm_ldlm.sampling.orders import masks_left
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.remdm import RemdmCapConfig, RemdmLoopConfig, RemdmRescaleConfig
from mm_ldlm.sampling.time_grid import make_grid

MASK, PAD, V, INF = 8, 9, 10, float("inf")


def constant(logits: Any, *, vocab_size: int = V) -> TextDenoiser:
    return TextDenoiser.dense(
        lambda tokens, t: logits(tokens, t), mask_id=MASK, pad_id=PAD, vocab_size=vocab_size
    )  # fmt: skip


# -- filters and lengths -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mass", "kept"), [(0.5, [1]), (0.5000001, [1, 3]), (0.75, [1, 3]), (0.7500001, [0, 1, 3]), (0.875, [0, 1, 3])]
)
def test_a_set_that_has_exactly_the_mass_is_large_enough(mass: float, kept: list[int]) -> None:
    p = torch.tensor([[0.125, 0.5, 0.125, 0.25]], dtype=torch.float64)
    found = filter_logits(p.log(), top_p=mass)
    assert torch.isfinite(found)[0].nonzero().flatten().tolist() == kept


def test_equal_logits_at_the_limit_of_top_k_stay_together() -> None:
    found = filter_logits(torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]]), top_k=2)
    assert torch.isfinite(found).tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_a_word_is_drawn_between_the_sums_of_the_sharpened_distribution(temperature: float) -> None:
    p = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)
    edges = (p ** (1 / temperature)).cumsum(0) / (p ** (1 / temperature)).sum()
    for word, edge in enumerate(edges[:-1].tolist()):
        below, above = (
            int(draw_tokens(p.log()[None], torch.tensor([u], dtype=torch.float64), Draw(temperature=temperature)))
            for u in (edge - 1e-6, edge + 1e-6)
        )
        assert (below, above) == (word, word + 1)


@pytest.mark.parametrize(
    ("length", "count"),
    [("top-999", 999), ("top-1000", 1000), ("top-999999999", 999_999_999), ("top-1000000000", None)],
)
def test_a_number_of_lengths_has_at_most_nine_digits(length: str, count: int | None) -> None:
    if count is not None:
        assert how_many_lengths(length) == count
        return
    with pytest.raises(ValueError, match="length must be 'argmax'"):
        how_many_lengths(length)


@pytest.mark.parametrize("length", ["longest", 0, "top-0", "argmin"])
def test_the_length_of_captions_is_checked_before_a_run(length: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'here\.length': length must be"):
        parse(ImageTasksConfig, {"length": length}, at="here")
    for good in ("argmax", "sample", 1):
        assert parse(ImageTasksConfig, {"length": good}, at="here").length == good


@pytest.mark.parametrize("name", ["temperature", "correction_temperature"])
def test_a_temperature_is_refused_under_its_own_name(name: str) -> None:
    for good in (0, COLDEST, 1.0, HOTTEST):
        refuse_temperature(good, name=name)
    for bad in (COLDEST * 0.999, HOTTEST * 1.001):
        with pytest.raises(ValueError, match="float32 has too few digits") as error:
            refuse_temperature(bad, name=name)
        assert str(error.value) == (
            f"{name} must be 0, for the most probable token, or lie between 0.0001 and 10000, found {bad:g}: float32 "
            "has too few digits for it"
        )


# -- which tokens are kept ---------------------------------------------------------------------------------------------


def prediction(**values: Tensor) -> Prediction:
    shape = next(iter(values.values())).shape
    whole: dict[str, Any] = {"evaluated": torch.ones(shape, dtype=torch.bool), "log_prob": torch.zeros(shape),
                             "margin": None, "entropy": None, "rows": torch.arange(shape[0])}  # fmt: skip
    return Prediction(**{**whole, **values})


@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.001, 0.3, 1.0])
def test_every_token_above_the_threshold_is_kept(threshold: float) -> None:
    p = torch.tensor([[1e-12, 1e-8, 0.0005, 0.002, 0.25, 0.5]], dtype=torch.float64)
    found = text_sampler("threshold", threshold=threshold).certain(prediction(log_prob=p.log()))
    assert found[0].tolist() == [value > threshold or value == 0.5 for value in p[0].tolist()]


@pytest.mark.parametrize(("bound", "kept"), [(0.0, 1), (0.25, 2), (0.75, 3), (0.7499, 2), (1.5, 4), (9.0, 4)])
def test_the_bound_of_the_entropies_is_included(bound: float, kept: int) -> None:
    """Without the largest one, the sums of 0.25, 0.5, 0.75 and 1 are 0, 0.25, 0.75 and 1.5."""
    entropy = torch.tensor([[0.75, 0.25, INF, 1.0, 0.5]])
    order = [1, 4, 0, 3]
    found = entropy_prefix(entropy, bound=bound)[0]
    assert found.nonzero().flatten().tolist() == sorted(order[:kept])


@pytest.mark.parametrize(("certain", "kept"), [(None, [0]), (0.0, [0, 1]), (0.5, [0, 1, 2])])
def test_tokens_without_any_uncertainty_are_certain_at_the_limit_0(certain: float | None, kept: list[int]) -> None:
    entropy = torch.tensor([[0.0, 0.0, 0.5, 0.75]])
    found = text_sampler("uncertainty", certain=certain).choose(None, prediction(entropy=entropy), torch.tensor([1]))
    assert found[0].nonzero().flatten().tolist() == kept


@pytest.mark.parametrize(("steps", "open_masks"), [(3, 3), (7, 7), (10, 10), (49, 49), (93, 93), (98, 98)])
def test_one_token_a_step_is_written_where_there_are_as_many_steps(steps: int, open_masks: int) -> None:
    """n·(1 − k/n) is a whole number, which rounding in float64 may leave just below it."""
    left = [
        int(masks_left(torch.tensor([open_masks]), step=step, steps=steps, counts="linear")) for step in range(steps)
    ]
    assert left == [*range(open_masks - 1, -1, -1)]


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 1), (0.5, 2), (1.0, 4)])
def test_no_more_tokens_are_uncertain_than_are_writable(fraction: float, count: int) -> None:
    writable = torch.tensor([[True, True, False, True, True], [False, False, True, False, False], [False] * 5])
    draft = Draft(torch.zeros(3, 5, dtype=torch.long), -torch.arange(15.0).view(3, 5), writable)
    found = least_certain(draft, fraction=fraction, noise=0.0, generator=RowGenerator(0, torch.arange(3)))
    assert found.sum(1).tolist() == [count, 1, 0]
    assert not (found & ~writable).any()
    assert found[0].nonzero().flatten().tolist() == [0, 1, 3, 4][-count:]


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "refused"), [(0.0, False), (0.9e-5, False), (1.2e-5, True), (0.005, True)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_model_whose_output_depends_on_the_time_by_more_than_rounding_is_refused(
    gap: float, refused: bool, sign: int
) -> None:
    """Between t = 0.9 and t = 0.1 the logit of one word changes by `gap`, in either direction."""

    def logits(tokens: Tensor, t: Tensor) -> Tensor:
        made = torch.zeros(*tokens.shape, V)
        made[..., 3] = sign * gap * (t[:, None] - 0.1) / 0.8
        return made

    tokens = torch.full((2, 4), MASK)
    if not refused:
        refuse_time_dependence(constant(logits), tokens)
        return
    with pytest.raises(SamplingError) as error:
        refuse_time_dependence(constant(logits), tokens)
    assert str(error.value) == (
        "sampler 'ddpm_cache' reuses the model's output between timesteps, but the output of this model depends on the "
        f"time: its logits at t=0.9 and t=0.1 differ by up to {gap:.3g}. Set timestep to 'mask_ratio', or use "
        "'ancestral' with skip_idle."
    )


def test_a_text_of_pads_alone_has_a_time() -> None:
    tokens = torch.tensor([[MASK, MASK, PAD], [PAD, PAD, PAD]])
    made = make_grid(constant(None), tokens, schedule=MaskSchedule(), steps=4)
    assert (made.start_B.tolist(), made.end_B.tolist()) == ([1.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize(("step", "remasking"), [(0, False), (1, True), (2, True), (3, False)])
def test_the_loop_of_remdm_includes_its_first_time_and_not_its_last(step: int, remasking: bool) -> None:
    """Four steps from 1: the times are 1, 0.75, 0.5 and 0.25 exactly."""
    grid: Any = SimpleNamespace(steps=4, start_B=torch.ones(2, dtype=torch.float64))
    level = RemdmLoopConfig(t_on=0.75, t_off=0.25, alpha_on=0.5).level(grid, step)
    assert level.remasking is remasking
    alphas = [0.0, 0.5, 0.5, 0.5, 1.0]
    assert level.now.tolist() == pytest.approx([alphas[step]] * 2)
    assert level.then.tolist() == pytest.approx([alphas[step + 1]] * 2)


def test_the_strength_of_remasking_is_capped_or_scaled() -> None:
    """σ_max is min(1, (1 − α_s)/α_t): here 0.5/0.4 → 1, 0.25/0.5, and 0.1/0.8."""
    level: Any = SimpleNamespace(largest_sigma=torch.tensor([1.0, 0.5, 0.125], dtype=torch.float64))
    assert RemdmCapConfig(eta=0.5).sigma(level).tolist() == [0.5, 0.5, 0.125]
    assert RemdmRescaleConfig(eta=0.5).sigma(level).tolist() == [0.5, 0.25, 0.0625]


# -- numbers of a model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_log_probabilities_are_float32_whatever_the_model_returns(dtype: torch.dtype) -> None:
    """Rounded logits are normalised in float32: a sum of bfloat16 numbers would be off by a percent."""
    logits_V = torch.linspace(-2, 2, 12).to(dtype)
    denoise = constant(lambda tokens, t: logits_V.expand(*tokens.shape, 12).clone())
    tokens, every = torch.full((1, 2), MASK), torch.ones(1, 2, dtype=torch.bool)
    found = word_log_probs(denoise, tokens, torch.ones(1), torch.arange(1), every, guidance=1.0)
    assert found.dtype == torch.float32
    assert found.shape == (2, V), "ids beyond the vocabulary are cut off"
    assert torch.isneginf(found[:, [MASK, PAD]]).all()
    torch.testing.assert_close(found[0, :8], logits_V[:8].float().log_softmax(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["confidence", "ancestral", "threshold", "remdm_cap"])
def test_a_model_in_bfloat16_writes_texts_with_float32_log_probabilities(kind: str) -> None:
    logits_V = torch.linspace(-2, 2, V).bfloat16()
    process = AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    found = text_sampler(kind, steps=3).sample(
        constant(lambda tokens, t: logits_V.expand(*tokens.shape, V).clone()), torch.full((2, 5), MASK),
        process=process, generator=RowGenerator(0, torch.arange(2)),
    )  # fmt: skip
    expected = logits_V[:8].float().log_softmax(0)
    assert found.log_probs.dtype == torch.float32
    torch.testing.assert_close(found.log_probs, expected[found.tokens], atol=1e-5, rtol=0)


def test_only_words_have_a_log_probability() -> None:
    """Ids beyond the columns of x_θ are noise: [MASK], or the id of a cluster."""
    log_x0 = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]).log()
    found = chosen_log_probs(log_x0.double(), torch.tensor([0, 2, 3, 9]))
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([math.log(0.5), math.log(0.5), 0.0, 0.0])
