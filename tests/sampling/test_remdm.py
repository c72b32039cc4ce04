"""ReMDM: the mask ratio follows the schedule while tokens are masked again and rewritten."""

from __future__ import annotations

import itertools

import pytest
import torch

from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.denoising import TextDenoiser

MASK, PAD = 8, 9


class Watcher:
    """A denoiser that counts the masks of its inputs: with one mask left a text is still evaluated."""

    def __init__(self, distribution=(0.5, 0.3, 0.2)):
        self.masks, self.log_probs = [], torch.tensor(distribution).log()
        self.denoise = TextDenoiser.dense(self, mask_id=MASK, pad_id=PAD, vocab_size=len(distribution))

    def __call__(self, tokens, t):
        self.masks.append(int((tokens == MASK).sum()))
        return self.log_probs.expand(*tokens.shape, -1)


@pytest.mark.parametrize("schedule", ["log_linear", "cosine"])
@pytest.mark.parametrize(
    ("variant", "eta"), [("cap", 0.2), ("rescale", 0.3), ("conf", 0.3), ("cap", 1.0), ("rescale", 1.0)]
)
def test_the_mask_ratio_stays_the_schedules(variant, eta, schedule, rows, canvas, write):
    watcher, steps, count, length = Watcher(), 10, 2000, 30
    write(
        f"remdm_{variant}", watcher.denoise, canvas(*[length] * count), rows(count),
        steps=steps, schedule=MaskSchedule(name=schedule), eta=eta,
    )  # fmt: skip
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[:-1]
    expected = MaskSchedule(name=schedule).mask_probability(times)
    expected = expected * (1 / expected[0])  # the first step sees masks only; 1 − α_1 is 0.999
    found = torch.tensor(watcher.masks) / (count * length)
    # a text's tokens are exchangeable but not independent: allow 6 standard errors of independent ones
    error = (expected * (1 - expected) / (count * length)).sqrt() + 1.2e-3
    assert ((found - expected).abs() / error).max() < 6


def test_loop_holds_the_mask_ratio(rows, canvas, write):
    watcher, steps, count, length = Watcher(), 20, 1500, 30
    write(
        "remdm_loop", watcher.denoise, canvas(*[length] * count), rows(count),
        steps=steps, eta=0.2, t_on=0.6, t_off=0.2, alpha_on=0.8,
    )  # fmt: skip
    found = torch.tensor(watcher.masks) / (count * length)
    inside = [step for step in range(steps) if 0.2 < 1 - step / steps < 0.6]
    assert (found[inside] - 0.2).abs().max() < 0.01
    assert found[0] == 1
    assert found[-1] < 0.1


def test_loop_masks_tokens_again_between_its_two_times_alone(rows, canvas, write):
    seen, steps, t_on, t_off = [], 20, 0.72, 0.32

    def logits(tokens, t):
        seen.append(tokens.clone())
        return torch.zeros(*tokens.shape, 3)

    denoise = TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=3)
    write("remdm_loop", denoise, canvas(1000), rows(1), steps=steps, eta=0.3, t_on=t_on, t_off=t_off)
    assert len(seen) == steps
    returned = {
        step: int(((before != MASK) & (after == MASK)).sum())
        for step, (before, after) in enumerate(itertools.pairwise(seen))
    }
    inside = {step for step in returned if t_off < 1 - step / steps <= t_on}
    assert {step for step, count in returned.items() if count} == inside
    assert len(inside) == 8


def test_eta_zero_is_ancestral_sampling(context_denoiser, rows, canvas, write):
    def run(kind, **settings):
        denoise = context_denoiser(timed=True)
        return write(kind, denoise, canvas(20, 9, 4), rows(3), steps=9, timestep="schedule", **settings).tokens

    for variant in ("cap", "rescale", "conf"):
        assert torch.equal(run("ancestral"), run(f"remdm_{variant}", eta=0.0))


@pytest.mark.parametrize(("variant", "eta"), [("cap", 1.0), ("rescale", 1.0), ("conf", 0.36), ("loop", 1.0)])
def test_given_tokens_are_never_masked(variant, eta, context_denoiser, rows, canvas, write):
    tokens = canvas(*[20] * 50)
    tokens[:, ::3] = 5
    sample = write(f"remdm_{variant}", context_denoiser(), tokens, rows(50), steps=30, eta=eta)
    assert (sample.tokens[:, ::3] == 5).all()
    assert (sample.steps[:, ::3] == -1).all()
    assert (sample.tokens != MASK).all()


def test_conf_masks_the_least_certain_first(rows, canvas, write):
    """Half of the positions are certain: they are rewritten less often, so they are last unmasked earlier."""
    distributions = torch.tensor([[0.98, 0.01, 0.01], [0.34, 0.33, 0.33]]).log()[torch.arange(40) % 2]
    denoise = TextDenoiser.dense(
        lambda tokens, t: distributions.expand(len(tokens), -1, -1), mask_id=MASK, pad_id=PAD, vocab_size=3
    )
    by_variant = {
        variant: write(f"remdm_{variant}", denoise, canvas(*[40] * 500), rows(500), steps=20, eta=0.36).steps.double()
        for variant in ("conf", "rescale")
    }
    gap = {name: float(steps[:, 1::2].mean() - steps[:, ::2].mean()) for name, steps in by_variant.items()}
    assert gap["conf"] > 0.3
    assert abs(gap["rescale"]) < 0.2


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("remdm_cap", {"eta": 0.9}),
        ("remdm_rescale", {"eta": 0.9}),
        ("remdm_conf", {"eta": 0.36}),
        ("remdm_loop", {"eta": 0.9}),
        ("remdm_loop", {"t_on": 0.8}),
        ("remdm_loop", {"t_off": 0.3}),
        ("remdm_loop", {"alpha_on": 0.5}),
        ("remdm_cap", {"timestep": "schedule"}),
    ],
)
def test_options_have_their_effect(name, changes, context_denoiser, rows, canvas, write):
    def run(**more):
        return write(name, context_denoiser(timed=True), canvas(*[25] * 20), rows(20), steps=12, **more).tokens

    assert not torch.equal(run(), run(**changes))


def test_skip_idle_saves_calls_and_changes_nothing(context_denoiser, rows, canvas, write):
    tokens = canvas(8, 8, 5, 3)
    plain = write("remdm_cap", context_denoiser(timed=True), tokens, rows(4), steps=60)
    lazy = write("remdm_cap", context_denoiser(timed=True), tokens, rows(4), steps=60, skip_idle=True)
    assert torch.equal(plain.tokens, lazy.tokens)
    assert (lazy.calls_per_row < plain.calls_per_row).all()
