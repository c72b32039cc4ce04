"""Ancestral sampling of absorbing diffusion, and `ddpm_cache`."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.ancestral import reverse_process
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.time_grid import make_grid

MASK, PAD = 8, 9


@pytest.mark.parametrize("name", ["log_linear", "cosine", "geometric"])
def test_pitfall_11_unmask_counts_follow_the_schedule(name, constant_denoiser, canvas, rows, write):
    schedule, steps, rows_n, length = MaskSchedule(name=name), 8, 4000, 25
    sample = write(
        "ancestral", constant_denoiser([0.5, 0.5]), canvas(*[length] * rows_n), rows(rows_n),
        steps=steps, schedule=schedule,
    )  # fmt: skip
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    alpha = schedule.alpha(times)
    start, alpha[-1] = alpha[0].clone(), 1.0
    expected = alpha.diff() / (1 - start)  # of all masks, in each step
    found = torch.bincount(sample.steps.flatten(), minlength=steps) / sample.steps.numel()
    error = (expected * (1 - expected) / sample.steps.numel()).sqrt().clamp_min(1e-9)
    assert ((found - expected).abs() / error).max() < 5
    if name == "log_linear":
        assert found[0] < 0.2  # not everything on the first step


def test_pitfall_11_mask_and_pad_are_never_sampled(constant_denoiser, canvas, rows, write):
    """The head gives [MASK], [PAD] and ids beyond the vocabulary a logit of 50 against at most 0 for the words."""
    sample = write("ancestral", constant_denoiser([0.6, 0.4]), canvas(*[50] * 2000), rows(2000), steps=3)
    assert set(sample.tokens.unique().tolist()) == {0, 1}


def test_one_token_a_step_draws_from_the_joint_distribution_exactly(rows, write):
    """Two words that depend on each other; an exact denoiser; random order, one at a time: the chain rule."""
    distribution = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)

    def logits(tokens, t):
        out = torch.full((*tokens.shape, 10), -torch.inf, dtype=torch.float64)
        first, second = tokens[:, 0], tokens[:, 1]
        given_second = distribution.T / distribution.sum(0)[:, None]
        given_first = distribution / distribution.sum(1)[:, None]
        out[:, 0, :3] = torch.where((second < 3)[:, None], given_second[second.clamp_max(2)], distribution.sum(1)).log()
        out[:, 1, :3] = torch.where((first < 3)[:, None], given_first[first.clamp_max(2)], distribution.sum(0)).log()
        return out

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=3)
    count = 200_000
    sample = write("random", denoise, torch.full((count, 2), MASK), rows(count), steps=2)
    found = torch.bincount(sample.tokens[:, 0] * 3 + sample.tokens[:, 1], minlength=9).double() / count
    error = (distribution.flatten() * (1 - distribution.flatten()) / count).sqrt()
    assert ((found - distribution.flatten()).abs() / error).max() < 4.5


def test_skip_idle_gives_the_same_sample_for_fewer_calls(context_denoiser, canvas, rows, write):
    tokens = canvas(9, 3, 12, 5, 1, 7)
    plain = write("ancestral", context_denoiser(timed=True), tokens, rows(6), steps=64)
    lazy = write("ancestral", context_denoiser(timed=True), tokens, rows(6), steps=64, skip_idle=True)
    assert torch.equal(plain.tokens, lazy.tokens)
    assert torch.equal(plain.steps, lazy.steps)
    assert torch.equal(plain.log_probs, lazy.log_probs)
    assert (lazy.calls_per_row <= (tokens == MASK).sum(1)).all()
    assert (plain.calls_per_row > lazy.calls_per_row).all()
    assert torch.equal(plain.calls_per_row, plain.steps.amax(1) + 1)  # until the last mask of the text has gone


def test_ddpm_cache_refuses_a_model_that_depends_on_the_time(context_denoiser, canvas, rows, write):
    def run(kind, timed, **settings):
        return write(kind, context_denoiser(timed=timed), canvas(9, 5), rows(2), **settings)

    with pytest.raises(SamplingError, match="output of this model depends on the time"):
        run("ddpm_cache", timed=True)
    blind = run("ddpm_cache", timed=False)
    assert torch.equal(blind.tokens, run("ancestral", timed=False).tokens)
    by_mask_ratio = run("ddpm_cache", timed=True, timestep="mask_ratio")
    plain = run("ancestral", timed=True, timestep="mask_ratio", skip_idle=True)
    assert torch.equal(by_mask_ratio.tokens, plain.tokens)
    assert by_mask_ratio.model_calls == plain.model_calls
    assert blind.model_calls == run("ancestral", timed=False, skip_idle=True).model_calls + 2


def test_a_cache_would_have_given_the_same_outputs(canvas, rows, write):
    """Evaluating a model where it is needed equals caching its output since the last change."""
    seen = []

    def logits(tokens, t):
        seen.append(tokens.clone())
        return torch.zeros(*tokens.shape, 10)

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=4)
    sample = write("ddpm_cache", denoise, canvas(6), rows(1), steps=50)
    states = [tuple(tokens[0].tolist()) for tokens in seen[2:]]
    assert len(states) == len(set(states))  # no state is evaluated twice
    assert len(seen) == sample.model_calls == int(sample.calls_per_row[0])


def test_the_model_receives_the_timestep_of_the_schedule_or_of_the_mask_ratio(canvas, rows, write):
    received = []

    def logits(tokens, t):
        received.append((t.clone(), (tokens == MASK).float().mean(1)))
        return torch.zeros(*tokens.shape, 10)

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=4)
    schedule = MaskSchedule()
    write("ancestral", denoise, canvas(20), rows(1), steps=4, timestep="schedule")
    assert [round(float(t), 6) for t, _ in received] == [1.0, 0.75, 0.5, 0.25][: len(received)]
    received.clear()
    write("ancestral", denoise, canvas(20), rows(1), steps=4, timestep="mask_ratio")
    for t, ratio in received:
        assert torch.allclose(schedule.mask_probability(t).clamp_max(0.999), ratio.clamp_max(0.999), atol=1e-5)


@pytest.mark.parametrize("name", ["log_linear", "cosine", "geometric"])
def test_pitfall_12_times_are_finite_at_both_ends(name):
    ratios = torch.tensor([0.0, 1e-9, 0.3, 1 - 1e-9, 1.0], dtype=torch.float64)
    times = MaskSchedule(name=name).time_of_mask_ratio(ratios)
    assert torch.isfinite(times).all()
    assert times[0] == 0
    assert times[-1] == 1
    assert (times.diff() >= 0).all()


def test_infill_starts_at_the_time_of_its_mask_ratio(constant_denoiser, canvas, rows, write):
    """Half of the tokens given: half of the grid's time is left, and the unmasks spread evenly over all steps."""
    tokens = canvas(*[40] * 1000)
    tokens[:, ::2] = 1
    sample = write("ancestral", constant_denoiser([0.5, 0.5]), tokens, rows(1000), steps=5)
    found = torch.bincount(sample.steps[:, 1::2].flatten(), minlength=5) / 20_000
    assert (found - 0.2).abs().max() < 0.02


def test_draw_settings_reach_the_draw(context_denoiser, canvas, rows, write):
    def run(**draw):
        return write("ancestral", context_denoiser(), canvas(*[30] * 8), rows(8), steps=4, **draw).tokens

    base = run()
    for changes in ({"temperature": 0.0}, {"temperature": 3.0}, {"top_k": 1}, {"top_p": 0.3}):
        assert not torch.equal(run(**changes), base)
    assert torch.equal(run(top_k=1), run(temperature=0.0))


def test_guidance_needs_an_unconditional_side_and_costs_double(context_denoiser, canvas, rows, write):
    tokens = canvas(8, 8, 8)
    with pytest.raises(SamplingError, match=r"guidance 2\.0 needs an unconditional prediction"):
        write("ancestral", context_denoiser(), tokens, rows(3), guidance=2.0)
    other = TextDenoiser.dense(
        lambda tokens, t: torch.linspace(-1, 1, 12).expand(*tokens.shape, 12), mask_id=MASK, pad_id=PAD, vocab_size=8
    )
    denoise = dataclasses.replace(context_denoiser(), unconditional=other.logits)
    guided = write("ancestral", denoise, tokens, rows(3), guidance=2.0)
    plain = write("ancestral", denoise, tokens, rows(3))
    assert not torch.equal(guided.tokens, plain.tokens)
    assert guided.model_calls == 2 * plain.model_calls


@pytest.mark.parametrize("name", ["log_linear", "cosine", "geometric"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 2}, {"temperature": 0.6, "top_p": 0.7}])
def test_the_reverse_process_of_absorbing_diffusion_is_its_own_sampler(
    name, settings, context_denoiser, canvas, rows, write
):
    """The loop for any process and the loop that unmasks draw the same texts, token for token."""
    schedule, tokens = MaskSchedule(name=name), canvas(20, 9, 4, 13)
    process = AbsorbingConfig(schedule=schedule).build(vocab_size=10, pad_id=PAD, mask_id=MASK)
    own = write("ancestral", context_denoiser(timed=True), tokens, rows(4), steps=7, schedule=schedule, **settings)
    any_process = reverse_process(
        context_denoiser(timed=True), tokens, process=process, steps=7, generator=rows(4), draw=Draw(**settings)
    )
    assert torch.equal(own.tokens, any_process.tokens)
    assert torch.equal(own.steps, any_process.steps)
    assert torch.equal(own.calls_per_row, any_process.calls_per_row)
    assert torch.equal(own.log_probs, any_process.log_probs)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_ddpm_cache_refuses_a_model_whose_outputs_cannot_be_compared(broken, canvas, rows, write) -> None:
    denoise = TextDenoiser.dense(
        lambda tokens, t: torch.full((*tokens.shape, 12), broken), mask_id=MASK, pad_id=PAD, vocab_size=8
    )  # fmt: skip
    with pytest.raises(SamplingError, match="differ by up to nan"):
        write("ddpm_cache", denoise, canvas(3), rows(1), steps=4)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_each_step_unmasks_its_fraction_of_the_masks_that_are_written(steps: int, constant_denoiser, canvas) -> None:
    """Of eight masks three stay: the five others are unmasked by α, whatever stays."""
    schedule = MaskSchedule(name="cosine", epsilon=0.0)
    open_BL = torch.arange(8)[None] < 5
    grid = make_grid(constant_denoiser([0.5, 0.5]), canvas(8), schedule=schedule, steps=steps, open_BL=open_BL)
    left = [5.0]
    for step in range(steps):
        left.append(left[-1] * (1 - float(grid.unmask_fraction(step))))
    masked = [8 * (1 - float(grid.alpha(step))) - 3 for step in range(steps + 1)]
    assert left == pytest.approx(masked, abs=1e-6)


@pytest.mark.parametrize(("closed", "end"), [(0, 0.0), (2, 0.25), (5, 0.625)])
def test_the_grid_ends_at_the_masks_that_stay(closed: int, end: float, constant_denoiser, canvas) -> None:
    """Six of eight tokens are masked: the grid begins at 6/8, and ends where those that are not written are left."""
    tokens = canvas(8)
    tokens[:, :2] = 1
    open_BL = torch.arange(8)[None] < 8 - closed
    schedule = MaskSchedule(epsilon=0.0)
    grid = make_grid(constant_denoiser([0.5, 0.5]), tokens, schedule=schedule, steps=4, open_BL=open_BL)
    assert float(grid.start_B) == pytest.approx(0.75)
    assert float(grid.end_B) == pytest.approx(end)
