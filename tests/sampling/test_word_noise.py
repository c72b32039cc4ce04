"""Processes whose noise includes words are scored and sampled like any other.

The texts are pairs of words with a known joint distribution, and the model is its exact prediction, so samples follow
the distribution.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from tables import JOINT, MASK, PAD, PAIRS, V, best_logits, gidd, uniform

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.joint import JointDenoiser, together
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, latent_sampler, text_sampler

PROCESSES = {"uniform": uniform(), "gidd": gidd()}


@pytest.fixture(params=PROCESSES)
def process(request):
    return PROCESSES[request.param]


def denoiser(process, watch=None):
    def logits(tokens_AL, t_A):
        if watch is not None:
            watch.append(tokens_AL.clone())
        return best_logits(process, tokens_AL, t_A)

    return TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=V + 2)


def frequencies(tokens):
    return torch.bincount(tokens[:, 0] * V + tokens[:, 1], minlength=9).double().view(V, V) / len(tokens)


def test_ancestral_samples_follow_the_distribution_and_tokens_are_revised(process, rows):
    count, watch = 8_000, []
    sample = text_sampler("ancestral", steps=60).sample(
        denoiser(process, watch), torch.full((count, 2), MASK), process=process, generator=rows(count)
    )
    assert (sample.tokens < V).all()
    assert (frequencies(sample.tokens) - JOINT).abs().max() < 0.02
    marginals = JOINT.sum(1, keepdim=True) * JOINT.sum(0, keepdim=True)
    assert (marginals - JOINT).abs().max() > 0.1, "independent words would be found out"
    changes = sum((a != b).long() for a, b in itertools.pairwise([*watch, sample.tokens]))
    assert (changes >= 2).any(), "a token may change again"
    assert sample.model_calls == 60
    log_p = best_logits(process, watch[-1], torch.full((count,), 1 / 60)).gather(2, sample.tokens[..., None])[..., 0]
    assert torch.allclose(sample.log_probs.double(), log_p.double(), atol=1e-4)


def test_given_tokens_and_pads_stay_and_a_text_does_not_depend_on_its_batch(process, rows):
    sampler = text_sampler("ancestral", steps=9)
    canvas = torch.tensor([[MASK, 2], [MASK, MASK], [1, 0], [MASK, PAD]])
    whole = sampler.sample(denoiser(process), canvas, process=process, generator=rows(4))
    assert whole.tokens[canvas != MASK].tolist() == [2, 1, 0, PAD]
    assert (whole.tokens[canvas == MASK] < V).all()
    assert whole.calls_per_row.tolist() == [9, 9, 0, 9]
    for row in range(4):
        generator = rows(4).select(torch.tensor([row]))
        alone = sampler.sample(denoiser(process), canvas[row : row + 1], process=process, generator=generator)
        assert torch.equal(alone.tokens[0], whole.tokens[row])
    limited = sampler.sample(
        denoiser(process), canvas[1:2], process=process, generator=rows(1), open_BL=torch.tensor([[True, False]])
    )
    assert limited.tokens[0, 1] == MASK


def test_draw_settings_apply_to_the_prediction(process, rows):
    def run(**settings):
        return frequencies(
            text_sampler("ancestral", steps=30, **settings)
            .sample(denoiser(process), torch.full((2000, 2), MASK), process=process, generator=rows(2000))
            .tokens
        )

    assert (run(temperature=0.0) - run()).abs().max() > 0.05
    assert torch.equal(run(top_k=1), run(temperature=0.0))


def test_samplers_that_unmask_refuse_the_process(process, rows):
    for kind in TEXT_SAMPLERS.known:
        if kind in ("ancestral", "self_correction", "autoregressive", "joint_states"):
            continue
        settings = {"inner": {"kind": "ancestral"}} if kind == "blocks" else {}
        message = rf"'{kind}' needs a process whose only noise is \[MASK\].*'{process.kind}'"
        with pytest.raises(SamplingError, match=message):
            text_sampler(kind, **settings).sample(denoiser(process), PAIRS, process=process, generator=rows(9))
    for settings in ({"timestep": "mask_ratio"}, {"skip_idle": True}):
        with pytest.raises(SamplingError, match="timestep 'mask_ratio' and skip_idle need a process"):
            text_sampler("ancestral", **settings).sample(denoiser(process), PAIRS, process=process, generator=rows(9))


def test_joint_sampling_runs_the_process(process, rows):
    masks = torch.full((5, 2), MASK)

    def predict(tokens_BL, t_text_B, z_Bd, t_latent_B, scored_BL, previous_Bd):
        assert (tokens_BL <= V).all()
        return best_logits(process, tokens_BL, t_text_B)[scored_BL], z_Bd

    denoise = JointDenoiser(predict=predict, process=process, latent_schedule=GaussianSchedule(), parameterisation="x0")
    latent = latent_sampler("ddim", steps=4)
    sample = together(denoise, masks, dim=2, draw=Draw(), latent=latent, generator=rows(5))
    assert (sample.text.tokens < V).all()
