"""Every sampler is built by its kind, has exactly the keys it reads, and runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mm_ldlm.core.config import parse_kind, to_dict
from mm_ldlm.core.errors import ConfigurationError, SamplingError
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler, text_sampler

MASK, PAD, WORDS = 8, 9, 8
SCHEDULES = ("log_linear", "cosine", "geometric")
OTHERS = ("autoregressive", "self_correction", "joint_states")
"""Kinds that do not sample from a denoiser of masked text alone; their own tests show what they read."""
KINDS = tuple(kind for kind in TEXT_SAMPLERS.known if kind not in OTHERS)
EXTRA = {
    "ddpm_cache": {"timestep": "mask_ratio"},
    "blocks": {"inner": {"kind": "confidence"}},
}
"""Keys that a kind needs beside its defaults"""
SHARED = {"kind", "steps", "temperature", "top_k", "top_p", "guidance"}
READ = {
    "ancestral": SHARED | {"timestep", "skip_idle"},
    "ddpm_cache": SHARED | {"timestep"},
    **dict.fromkeys(("confidence", "margin", "entropy", "random"), SHARED | {"timestep", "counts"}),
    "uncertainty": SHARED | {"timestep", "counts", "measure", "order", "certain"},
    "threshold": SHARED | {"threshold"},
    "entropy_bounded": SHARED | {"entropy_bound"},
    "blocks": {"kind", "block_length", "inner"},
    **dict.fromkeys(("remdm_cap", "remdm_rescale", "remdm_conf"), SHARED | {"timestep", "skip_idle", "eta"}),
    "remdm_loop": SHARED | {"timestep", "skip_idle", "eta", "t_on", "t_off", "alpha_on"},
}
SHARED_LATENT = {"kind", "guidance", "t_max", "draws"}
READ_LATENT = {
    **dict.fromkeys(("ddpm", "euler", "heun", "dpmpp_2m"), SHARED_LATENT | {"steps"}),
    "ddim": SHARED_LATENT | {"steps", "eta"},
    "one_step": SHARED_LATENT,
}


def _steps(kind, steps):
    return {"inner": {"kind": "confidence", "steps": steps}} if kind == "blocks" else {"steps": steps}


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_sampler_has_exactly_the_keys_it_reads(kind):
    config = text_sampler(kind, **EXTRA.get(kind, {}))
    assert {field.name for field in dataclasses.fields(config)} == READ[kind]
    assert config.kind == kind
    assert parse_kind(TEXT_SAMPLERS, to_dict(config), at="sampler") == config
    for key in {key for keys in READ.values() for key in keys} - READ[kind]:
        with pytest.raises(ConfigurationError, match=rf"sampler\.{key}' is not known.*Known here: kind, "):
            text_sampler(kind, **EXTRA.get(kind, {}) | {key: 1})


@pytest.mark.parametrize("kind", LATENT_SAMPLERS.known)
def test_a_latent_sampler_has_exactly_the_keys_it_reads(kind):
    config = latent_sampler(kind)
    assert {field.name for field in dataclasses.fields(config)} == READ_LATENT[kind]
    assert config.kind == kind
    assert parse_kind(LATENT_SAMPLERS, to_dict(config), at="sampler") == config
    for key in {"steps", "eta"} - READ_LATENT[kind]:
        with pytest.raises(ConfigurationError, match=rf"sampler\.{key}' is not known"):
            latent_sampler(kind, **{key: 1})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_sampler_fills_every_mask_and_nothing_else(kind, schedule, context_denoiser, rows, canvas, write):
    tokens = canvas(12, 1, 7, 5)
    tokens[0, 3], tokens[2, 0] = 4, 6  # given
    sample = write(
        kind, context_denoiser(timed=True), tokens, rows(4), schedule=MaskSchedule(name=schedule),
        **EXTRA.get(kind, {}) | _steps(kind, 6),
    )  # fmt: skip
    given = tokens != MASK
    assert torch.equal(sample.tokens[given], tokens[given])
    assert (sample.tokens[~given] < WORDS).all()
    assert (sample.steps[given] == -1).all()
    assert (sample.steps[~given] >= 0).all()
    assert (sample.log_probs[~given] <= 0).all()
    assert (sample.log_probs[given] == 0).all()
    assert sample.calls_per_row.max() <= sample.model_calls


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_does_not_depend_on_its_batch(kind, context_denoiser, rows, canvas, write):
    denoise = context_denoiser(timed=True, sharpness=2.0)
    settings = EXTRA.get(kind, {}) | _steps(kind, 9) | ({"block_length": 4} if kind == "blocks" else {})
    lengths = (13, 4, 30, 9)
    together = write(kind, denoise, canvas(*lengths), rows(4), window=16, **settings)
    for row, length in enumerate(lengths):
        alone = write(kind, denoise, canvas(length), rows(4).select(torch.tensor([row])), window=16, **settings)
        assert torch.equal(alone.tokens[0], together.tokens[row, :length])
        assert torch.equal(alone.steps[0], together.steps[row, :length])
        assert int(alone.calls_per_row[0]) == int(together.calls_per_row[row])


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind, context_denoiser, rows, canvas, write):
    def run(seed):
        return write(kind, context_denoiser(), canvas(20, 20), rows(2, seed), **EXTRA.get(kind, {})).tokens

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_masked_costs_nothing(kind, context_denoiser, rows, write):
    tokens = torch.tensor([[1, 2, 3, PAD]])
    sample = write(kind, context_denoiser(), tokens, rows(1), **EXTRA.get(kind, {}))
    assert torch.equal(sample.tokens, tokens)
    assert sample.model_calls == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_diffusion_process_is_refused(kind, context_denoiser, rows, canvas):
    with pytest.raises(SamplingError, match=r"has no diffusion process\. Choose the sampler 'autoregressive'"):
        text_sampler(kind, **EXTRA.get(kind, {})).sample(context_denoiser(), canvas(4), process=None, generator=rows(1))


def test_unknown_kinds_are_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"Did you mean 'confidence'\? Known here: ancestral, .*remdm_loop"):
        text_sampler("confidense")
    with pytest.raises(ConfigurationError, match=r"Did you mean 'ddim'\? Known here: ddpm, ddim, euler"):
        latent_sampler("dimm")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("remdm_conf", {"eta": 0.38}, r"remdm_conf.*1/e"),
        ("remdm_loop", {"t_off": 0.6}, "t_off must be below t_on"),
        ("confidence", {"top_p": 0.0}, "top_p must be above 0"),
        ("confidence", {"steps": 0}, "greater than 0"),
        ("blocks", {}, "sampler.inner' is missing"),
        ("blocks", {"inner": {"kind": "blocks", "inner": {"kind": "random"}}}, "inner must write within"),
        ("blocks", {"inner": {"kind": "random", "eta": 0.1}}, r"sampler\.inner\.eta' is not known"),
    ],
)
def test_impossible_settings_are_refused(kind, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        text_sampler(kind, **settings)


def test_override_changes_only_what_is_given():
    plain = text_sampler("threshold", threshold=0.7, temperature=0.5)
    assert plain.override() == plain
    assert plain.override(steps=3) == text_sampler("threshold", threshold=0.7, temperature=0.5, steps=3)
    blocks = text_sampler("blocks", inner={"kind": "random", "steps": 2}).override(temperature=0.1)
    assert (blocks.inner.steps, blocks.inner.temperature, blocks.draw.temperature) == (2, 0.1, 0.1)
    assert latent_sampler("heun").override(steps=3, draws=2) == latent_sampler("heun", steps=3, draws=2)
    with pytest.raises(ConfigurationError, match=r"sampler\.steps"):
        latent_sampler("one_step").override(steps=3)
    with pytest.raises(ConfigurationError, match=r"sampler\.steps"):
        plain.override(steps=0)
    assert plain.override(temperature=0.0).temperature == 0.0
    for key in ("steps", "draws"):
        with pytest.raises(ConfigurationError, match=rf"sampler\.{key}"):
            latent_sampler("heun").override(**{key: 0})


@pytest.mark.parametrize("kind", ["confidence", "blocks"])
@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"steps": 1}])
def test_overrides_have_their_effect(kind, change, context_denoiser, rows, canvas, write):
    before = text_sampler(kind, **EXTRA.get(kind, {}))
    results = [
        write(denoise=context_denoiser(), tokens=canvas(*[24] * 8), generator=rows(8), **to_dict(config)).tokens
        for config in (before, before.override(**change))
    ]
    assert not torch.equal(*results)
