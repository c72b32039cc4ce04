"""The ancestral sampler under HDLM: the distribution of its texts, and what they never contain."""

from __future__ import annotations

import pytest
import torch

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.families.hdlm.process import HdlmConfig
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, text_sampler

WORDS, PAD, MASK, V = 3, 3, 4, 5
CLUSTERS = (0, 1, 0)
JOINT = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)


def process(clusters=CLUSTERS, **keys):
    return HdlmConfig(**keys).build(
        vocab_size=V, pad_id=PAD, mask_id=MASK, token_clusters=torch.tensor([*clusters, -1, -1])[:, None]
    )


def denoiser(clusters=CLUSTERS, watch=None):
    """The posterior of both words given the noisy pair; [PAD] and [MASK] have the highest logits."""
    fit_IW = torch.eye(V + max(clusters) + 1, WORDS, dtype=torch.float64)
    fit_IW[MASK] = 1
    for word, cluster in enumerate(clusters):
        fit_IW[V + cluster, word] = 1

    def logits(tokens_AL, t_A):
        if watch is not None:
            watch.append(tokens_AL.clone())
        joint_AWW = JOINT * fit_IW[tokens_AL[:, 0], :, None] * fit_IW[tokens_AL[:, 1], None, :]
        words_A2W = torch.stack([joint_AWW.sum(2), joint_AWW.sum(1)], dim=1)
        return torch.cat([words_A2W.log(), torch.full((len(tokens_AL), 2, 2), 50.0)], dim=-1)

    return TextDenoiser.dense(logits, mask_id=MASK, pad_id=PAD, vocab_size=V)


def sample(count, rows, *, steps=64, clusters=CLUSTERS, watch=None, gamma=1.0, **settings):
    return text_sampler("ancestral", steps=steps, **settings).sample(
        denoiser(clusters, watch), torch.full((count, 2), MASK), process=process(clusters, gamma=gamma),
        generator=rows(count),
    )  # fmt: skip


def frequencies(tokens):
    return torch.bincount(tokens[:, 0] * WORDS + tokens[:, 1], minlength=9).double().view(WORDS, WORDS) / len(tokens)


def within(found, count, *, bias=0.0):
    return ((found - JOINT).abs() < 4.5 * (JOINT * (1 - JOINT) / count).sqrt() + bias).all()


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_samples_follow_the_distribution(gamma, rows):
    watch, count = [], 10_000
    found = sample(count, rows, watch=watch, gamma=gamma)
    assert within(frequencies(found.tokens), count, bias=1e-3)
    marginals = JOINT.sum(1, keepdim=True) * JOINT.sum(0, keepdim=True)
    assert (marginals - JOINT).abs().max() > 0.1, "independent words would be found out"
    shown = torch.cat([x.flatten() for x in watch]).unique().tolist()
    assert shown == [0, 1, 2, MASK, V, V + 1]
    assert found.model_calls == len(watch) <= 64


@pytest.mark.parametrize("clusters", [(0, 1, 2), (0, 0, 0)])
def test_at_both_limits_samples_are_those_of_mdlm(clusters, rows):
    count = 10_000
    hierarchical = frequencies(sample(count, rows, clusters=clusters).tokens)
    absorbing = text_sampler("ancestral", steps=64).sample(
        denoiser(), torch.full((count, 2), MASK), generator=rows(count, seed=1),
        process=AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK),
    )  # fmt: skip
    error = (2 * JOINT * (1 - JOINT) / count).sqrt()
    assert ((hierarchical - frequencies(absorbing.tokens)).abs() < 4.5 * error + 2e-3).all()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.5}])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_texts_contain_words_only(steps, settings, rows):
    found = sample(500, rows, steps=steps, **settings)
    assert (found.tokens < WORDS).all()
    assert torch.isfinite(found.log_probs).all()


def test_given_tokens_and_pads_stay_and_a_text_does_not_depend_on_its_batch(rows):
    sampler = text_sampler("ancestral", steps=9)
    canvas = torch.tensor([[MASK, 2], [MASK, MASK], [1, 0], [MASK, PAD]])
    whole = sampler.sample(denoiser(), canvas, process=process(), generator=rows(4))
    assert whole.tokens[canvas != MASK].tolist() == [2, 1, 0, PAD]
    assert (whole.tokens[canvas == MASK] < WORDS).all()
    for row in range(4):
        generator = rows(4).select(torch.tensor([row]))
        alone = sampler.sample(denoiser(), canvas[row : row + 1], process=process(), generator=generator)
        assert torch.equal(alone.tokens[0], whole.tokens[row])


def test_samplers_that_unmask_refuse_the_process(rows):
    for kind in TEXT_SAMPLERS.known:
        if kind in ("ancestral", "autoregressive", "joint_states"):
            continue
        settings = {"inner": {"kind": "ancestral"}} if kind == "blocks" else {}
        with pytest.raises(SamplingError, match=rf"'{kind}' needs a process whose.*'hdlm'"):
            text_sampler(kind, **settings).sample(
                denoiser(), torch.tensor([[MASK, 0]]), process=process(), generator=rows(1)
            )
