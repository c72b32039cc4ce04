"""Adaptive masking: what it shares with text diffusion, what it masks, what it learns, and what it logs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from test_text_diffusion import SHAPE, TEXTS, OptimalDenoiser, P, batch, conditional_nll, rows
from torch import Tensor, nn

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.families.atat.objective import AdaptiveMaskingConfig, frequency_prior, rank_by_row
from mm_ldlm.families.autoregressive.model import CausalConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.objectives.base import Batch, Objective
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.text_diffusion import TextDiffusionConfig
from mm_ldlm.objectives.training_times import text_times

SMALL = {"estimator": {"dim": 16, "depth": 1, "heads": 2}}
CURRICULUM = {"steps": 90, "pace": "step"}


def objective(shape: DataShape = SHAPE, **keys: Any) -> Any:
    made = parse(AdaptiveMaskingConfig, {**SMALL, **keys}, at="objective").build(shape)
    made.set_token_counts(lambda: torch.tensor([50, 30, 20] + [0] * (shape.vocab_size - 3)))
    if made.estimator is not None:  # its head starts at 0, so that all tokens would be alike
        nn.init.normal_(made.estimator.output.weight, std=5.0, generator=torch.Generator().manual_seed(1))
    return made


def losses_of(made: Any, data: Batch, *, seed: int = 0, step: int = 0, model: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = made(model or OptimalDenoiser(), data, rows(len(data.tokens_BL), seed=seed),
                                 kind=made.kinds[0], step=step)  # fmt: skip
    return found


def ratio(pair: tuple[Tensor, Tensor]) -> float:
    return float((pair[0] / pair[1]).detach())


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "training"), [
    ({"policy": "uniform"}, True),
    ({"importance": "none", "policy": "balanced"}, True),
    ({"policy": "balanced", "curriculum": CURRICULUM, "warmup_steps": 0}, False),
    ({"policy": "importance"}, False),
])  # fmt: skip
def test_uniform_masking_and_every_evaluation_is_text_diffusion(keys, training):
    """Validation masks uniformly whatever the policy and the curriculum: the same numbers as the objective without."""
    data, made = batch(TEXTS), objective(**keys).train(training)
    plain = parse(TextDiffusionConfig, {}, at="objective").build(SHAPE)
    expected, found = losses_of(plain, data), losses_of(made, data)
    for name, (value, count) in expected.items():
        torch.testing.assert_close(found[name][0], value, rtol=1e-5, atol=1e-6)
        assert float(found[name][1]) == float(count), name


@pytest.mark.parametrize("keys", [{}, {"time_sharpening": False}])
def test_the_training_loss_of_the_optimal_denoiser_estimates_the_bound(keys):
    texts = [text for text in TEXTS for _ in range(round(3000 * P[text]))]
    data, made, sums, tokens = batch(texts), objective(**keys), 0.0, 0
    for seed in range(4):
        losses = losses_of(made, data, seed=seed)
        sums, tokens = sums + float(losses["text_loss"][0]), tokens + int(losses["text_loss"][1])
    assert ratio(losses["importance_std"]) > 0.1
    assert sums / tokens == pytest.approx(sum(map(conditional_nll, texts)) / data.global_tokens, rel=0.04)


@pytest.mark.parametrize("policy", ["importance", "inverse"])
def test_policies_that_leave_tokens_unmasked_have_a_smaller_loss_and_mask_less(policy):
    data = batch(TEXTS * 40)
    balanced, found = (losses_of(objective(policy=name), data) for name in ("balanced", policy))
    assert ratio(found["text_loss"]) < 0.8 * ratio(balanced["text_loss"])
    assert ratio(found["masking_rate"]) < 0.8 * ratio(balanced["masking_rate"])


def test_temperature_changes_what_is_masked():
    data = batch(TEXTS * 40)
    cold, hot = (losses_of(objective(policy="importance", temperature=t), data) for t in (0.5, 5.0))
    assert ratio(hot["masking_rate"]) > 1.2 * ratio(cold["masking_rate"])


def test_time_sharpening_decides_what_is_masked_and_what_a_sampler_reads():
    data, canvas_BL, t_B = batch(TEXTS * 40), torch.full((3, 2), SHAPE.mask_id), torch.tensor([0.1, 0.4, 0.9])
    made = {on: objective(policy="importance", importance="learned_only", time_sharpening=on) for on in (True, False)}
    rate = {on: ratio(losses_of(one, data)["masking_rate"]) for on, one in made.items()}
    assert rate[False] > 1.05 * rate[True]
    for on, one in made.items():
        denoise = one.generative_model(OptimalDenoiser()).text_denoiser(None, rows(3))
        plain_BL = one.importance(canvas_BL, torch.ones_like(canvas_BL).bool())
        expected_BL = plain_BL ** (1 / (t_B[:, None] + 0.1)) if on else plain_BL
        torch.testing.assert_close(denoise.importance(canvas_BL, t_B), expected_BL)


def test_a_single_mask_has_no_rank_and_trains_no_estimator():
    data, made = batch(TEXTS), objective()
    first = dataclasses.replace(data, tokens_BL=data.tokens_BL[:, :1], valid_BL=data.valid_BL[:, :1])
    model = DiTConfig(dim=16, depth=1, heads=2).build(SHAPE, generator=torch.Generator().manual_seed(0))
    found = losses_of(made, first, model=model)
    assert float(found["masking_rate"][0]) > 0
    assert float(found["importance_loss"][0].detach()) == 0
    assert float(losses_of(made, data)["importance_loss"][0].detach()) > 0


def test_pitfall_21_the_curriculum_changes_the_loss_and_no_mask():
    data = batch(TEXTS * 10)
    plain, staged = objective(), objective(curriculum=CURRICULUM, warmup_steps=30)
    for step, stage in ((0, 0), (30, 1), (50, 2), (70, 3)):
        a, b = losses_of(plain, data, step=step), losses_of(staged, data, step=step)
        for name in ("masking_rate", "text_nll", "importance_mean", "importance_std", "importance_loss"):
            assert torch.equal(a[name][0], b[name][0]), name
        assert torch.equal(a["text_loss"][0], b["text_loss"][0]) is (stage == 0)
        assert ratio(b["curriculum_stage"]) == stage
        assert ratio(b["text_loss"]) == pytest.approx(ratio(a["text_loss"]), rel=0.4)
    assert ratio(a["masking_rate"]) == pytest.approx(ratio(a["noise_level"]), abs=0.03)


def test_the_importance_gets_no_gradient_from_the_text_loss():
    made = objective()
    losses_of(made, batch(TEXTS))["text_loss"][0].requires_grad_().backward()
    assert all(p.grad is None for p in made.parameters())


# -- importance --------------------------------------------------------------------------------------------------------


def test_the_frequency_prior_is_minus_log_p_scaled():
    counts_V = torch.tensor([60, 30, 10, 0, 0])
    prior_V = frequency_prior(counts_V, mask_id=4)
    middle = math.log(60 / 30) / math.log(60 / 10)
    mean = 0.3 * middle + 0.1
    torch.testing.assert_close(prior_V, torch.tensor([0.0, middle, 1.0, 1.0, mean]))
    assert frequency_prior(torch.tensor([5, 5, 5, 0, 0]), mask_id=4)[:3].tolist() == [0.5] * 3


def test_the_modes_are_as_defined():
    data = batch(TEXTS)
    both = {mode: objective(importance=mode) for mode in ("full", "learned_only", "frequency_only", "none")}
    found = {mode: made.importance(data.tokens_BL, data.valid_BL) for mode, made in both.items()}
    learned = both["full"].estimator(data.tokens_BL, data.valid_BL)
    prior = frequency_prior(torch.tensor([50, 30, 20, 0, 0]), mask_id=SHAPE.mask_id)[data.tokens_BL]
    torch.testing.assert_close(found["full"], 0.7 * learned + 0.3 * prior)
    torch.testing.assert_close(found["learned_only"], learned)
    torch.testing.assert_close(found["frequency_only"], prior)
    assert bool((found["none"] == 0.5).all())
    for mode, made in both.items():
        learns = mode in ("full", "learned_only")
        assert (len(list(made.parameters())) > 0) is learns
        assert ("importance_loss" in made.weights) is learns
        assert ("importance_loss" in losses_of(made, data)) is learns


def test_a_prior_that_was_never_counted_is_no_number():
    made = parse(AdaptiveMaskingConfig, SMALL, at="objective").build(SHAPE)
    assert bool(made.importance(batch(TEXTS).tokens_BL, batch(TEXTS).valid_BL).isnan().any())


def test_ranks_are_taken_among_the_masked_tokens_of_a_text():
    value_BL = torch.tensor([[3.0, 1.0, 9.0, 2.0], [5.0, 4.0, 0.0, 0.0]])
    masked_BL = torch.tensor([[True, True, False, True], [False, True, False, False]])
    rank_BL = rank_by_row(value_BL, masked_BL)
    assert rank_BL[0][masked_BL[0]].tolist() == [1.0, 0.0, 0.5]
    assert rank_BL[1, 1] == 0.0


def test_the_losses_of_a_text_do_not_depend_on_its_micro_batch():
    """So that any number of ranks trains the same."""
    data, made = batch(TEXTS), objective(curriculum=CURRICULUM, warmup_steps=0)
    whole = losses_of(made, data, step=70)
    summed = {name: 0.0 for name in whole}
    for part in (slice(0, 13), slice(13, None)):
        micro = Batch(
            tokens_BL=data.tokens_BL[part], valid_BL=data.valid_BL[part], fields={}, examples_B=data.examples_B[part],
            position_B=data.position_B[part], global_size=data.global_size, global_tokens=data.global_tokens,
        )  # fmt: skip
        generator = rows(len(TEXTS)).select(torch.arange(len(TEXTS))[part])
        for name, (value, _) in made(OptimalDenoiser(), micro, generator, kind=made.kinds[0], step=70).items():
            summed[name] += float(value.detach())
    for name in ("text_loss", "importance_loss", "importance_mean", "masking_rate", "noise_level", "curriculum_stage"):
        assert summed[name] == pytest.approx(float(whole[name][0].detach()), rel=1e-4), name


def test_the_logged_statistics_are_those_of_the_valid_tokens():
    data, made = batch(TEXTS), objective()
    found = losses_of(made, data)
    values = made.importance(data.tokens_BL, data.valid_BL)[data.valid_BL]
    expected = {"mean": values.mean(), "std": values.std(correction=0), "min": values.min(), "max": values.max()}
    for name, value in expected.items():
        assert ratio(found[f"importance_{name}"]) == pytest.approx(float(value.detach()), rel=1e-5), name
    t_B = text_times(made.process, data, rows(len(TEXTS)).fork("text_time"))
    assert ratio(found["noise_level"]) == pytest.approx(float(t_B.mean()), rel=1e-5)
    assert ratio(found["noise_level"]) != pytest.approx(1 - float(t_B.mean()), rel=1e-4)


def test_a_collapsed_importance_is_reported_once_after_the_warm_up():
    made = objective(importance="learned_only", warmup_steps=5)

    def observed(std: float, step: int) -> str | None:
        return made.observe({"text_nll": (10.0, 5.0), "importance_std": (8 * std, 8.0)}, step=step)

    assert observed(0.05, 4) is None
    assert "found 0.050 after 6 steps" in observed(0.05, 5)
    assert observed(0.04, 6) is None
    assert observed(0.15, 7) is None
    assert observed(0.09, 8) is not None
    for mode in ("none", "frequency_only"):
        made = objective(importance=mode, warmup_steps=5)
        assert observed(0.0, 9) is None, "nothing was learned that could collapse"


def test_the_dynamic_curriculum_follows_the_observed_loss():
    made = objective(curriculum={"steps": 90, "pace": "dynamic", "window": 2}, warmup_steps=0)
    for step in range(4):
        made.observe({"text_nll": (10.0, 5.0), "importance_std": (1.0, 1.0)}, step=step)
    assert ratio(losses_of(made, batch(TEXTS), step=4)["curriculum_stage"]) == 2
    assert "plateau_4" in made.state_dict()


def test_a_curriculum_without_steps_lasts_as_long_as_the_training():
    made = objective(curriculum={}, warmup_steps=0)
    with pytest.raises(AssertionError, match="set_training_length"):
        losses_of(made, batch(TEXTS), step=0)
    made.set_training_length(90)
    stages = [ratio(losses_of(made, batch(TEXTS), step=step)["curriculum_stage"]) for step in (0, 29, 30, 59, 60, 89)]
    assert stages == [1, 1, 2, 2, 3, 3]
    fixed = objective(curriculum={"steps": 30}, warmup_steps=0)
    fixed.set_training_length(90)
    assert ratio(losses_of(fixed, batch(TEXTS), step=29)["curriculum_stage"]) == 3


# -- learning ----------------------------------------------------------------------------------------------------------

V, N = 20, 8
WIDE = DataShape(vocab_size=V, pad_id=0, mask_id=1, max_length=N)


def half_random(count: int, seed: int) -> Batch:
    """Texts whose first four tokens are always the same and whose last four are drawn at random."""
    random_BL = torch.randint(10, V, (count, 4), generator=torch.Generator().manual_seed(seed))
    tokens_BL = torch.cat([torch.arange(2, 6).expand(count, -1), random_BL], dim=1)
    return Batch(
        tokens_BL=tokens_BL, valid_BL=torch.ones_like(tokens_BL, dtype=torch.bool), fields={},
        examples_B=torch.arange(count), position_B=torch.arange(count), global_size=count, global_tokens=count * N,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    """Model and objective after 80 steps, and no parameter without a gradient among the first five."""
    config = {**SMALL, "importance": "learned_only", "curriculum": {"steps": 80}, "warmup_steps": 20}
    made = parse(AdaptiveMaskingConfig, config, at="objective").build(WIDE).train()
    model = DiTConfig(dim=32, depth=1, heads=4).build(WIDE, generator=torch.Generator().manual_seed(0)).train()
    named = [*model.named_parameters(), *made.named_parameters()]
    optimizer, seen = torch.optim.AdamW([p for _, p in named], lr=5e-3), set()
    for step in range(80):
        losses = losses_of(made, half_random(32, step), seed=step, step=step, model=model)
        total = sum(
            losses[name][0] * weight / losses[name][1] for name, weight in made.weights.items() if name in losses
        )
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        seen |= {name for name, p in named if p.grad is not None and bool(p.grad.any())} if step < 5 else set()
    assert seen == {name for name, _ in named}
    return model, made


def test_a_learned_importance_spreads_and_follows_the_loss(trained):
    _, made = trained
    data = half_random(64, 999)
    importance_BL = made.importance(data.tokens_BL, data.valid_BL).detach()
    assert float(importance_BL.std()) > 0.1
    assert float(importance_BL[:, 4:].mean() - importance_BL[:, :4].mean()) > 0.3


def test_the_denoiser_at_sampling_gives_the_importance_of_masked_positions(trained):
    """`noised_inputs` is what the estimator learns masked texts from."""
    model, made = trained
    canvas_BL = torch.full((2, N), WIDE.mask_id)
    generation = made.generative_model(model)
    with generation.evaluating():
        found_BL = generation.text_denoiser(None, RowGenerator(0, torch.arange(2))).importance(canvas_BL, torch.ones(2))
    assert float(found_BL[:, 4:].mean() - found_BL[:, :4].mean()) > 0.3


def test_noised_inputs_decides_what_the_estimator_is_trained_on():
    data = half_random(32, 0)
    found = {}
    for fraction in (0.0, 1.0):
        made = objective(WIDE, importance="learned_only", noised_inputs=fraction)
        model = DiTConfig(dim=32, depth=1, heads=4).build(WIDE, generator=torch.Generator().manual_seed(0))
        losses_of(made, data, model=model)["importance_loss"][0].backward()
        found[fraction] = made.estimator.tokens.weight.grad[WIDE.mask_id].abs().sum()
    assert found[0.0] == 0
    assert found[1.0] > 0


# -- configuration -----------------------------------------------------------------------------------------------------


def test_capabilities_and_protocol():
    config = parse_kind(OBJECTIVES, {"kind": "adaptive_masking"}, at="objective")
    found = config.capabilities(DiTConfig())
    assert {"unconditional", "infill", "score"} == found.uses
    assert found.trained_as == "objective adaptive_masking, process absorbing"
    assert isinstance(config.build(SHAPE), Objective)
    assert config.identity == {"process": "absorbing", "importance": "full"}
    with pytest.raises(ConfigurationError, match="trains a model of interface 'text_denoiser'"):
        config.capabilities(CausalConfig())


@pytest.mark.parametrize("kind", [kind for kind in TEXT_PROCESSES.known if kind != "absorbing"])
def test_another_process_is_refused(kind):
    with pytest.raises(ConfigurationError, match=rf"process must be 'absorbing'.*found '{kind}'"):
        parse_kind(OBJECTIVES, {"kind": "adaptive_masking", "process": {"kind": kind}}, at="objective")


def test_another_weighting_of_the_loss_is_refused():
    """Adaptive masking has weights of its own, so that of the process would be ignored."""
    process = {"kind": "absorbing", "loss_weighting": "constant"}
    with pytest.raises(ConfigurationError, match=r"process\.loss_weighting must be 'elbo'.*found 'constant'"):
        parse_kind(OBJECTIVES, {"kind": "adaptive_masking", "process": process}, at="objective")
