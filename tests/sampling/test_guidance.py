"""Classifier-free guidance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.families.sedd.process import SeddConfig
from mm_ldlm.sampling.ancestral import log_x0_at
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.guidance import guide_log_probs, guide_prediction


@given(st.floats(0, 8), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_guidance_is_normalised_and_as_defined(scale, seed):
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, 5, 9, generator=generator, dtype=torch.float64)
    both[:, :, 3] = -torch.inf
    conditional, unconditional = both.log_softmax(-1)
    out = guide_log_probs(conditional, unconditional, scale=scale)
    assert torch.allclose(out.exp().sum(-1), torch.ones(5, dtype=torch.float64))
    assert torch.isneginf(out[:, 3]).all()
    alive = [0, 1, 2, 4, 5, 6, 7, 8]
    raw = scale * conditional[:, alive] + (1 - scale) * unconditional[:, alive]
    assert torch.allclose(out[:, alive], raw - raw.logsumexp(-1, keepdim=True))


def test_guidance_ends():
    both = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    assert torch.allclose(guide_log_probs(both[0], both[1], scale=1.0), both[0], atol=1e-6)
    assert torch.allclose(guide_log_probs(both[0], both[1], scale=0.0), both[1], atol=1e-6)


def test_guidance_of_a_prediction_extrapolates():
    assert guide_prediction(torch.tensor([1.0]), torch.tensor([0.25]), scale=2.0).item() == 1.75


@pytest.mark.parametrize("graph", ["absorbing", "uniform"])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_scores_are_guided_themselves_and_need_an_unconditional_side(graph, scale):
    process = SeddConfig(graph=graph).build(vocab_size=5, pad_id=0, mask_id=2)
    draw = torch.Generator().manual_seed(0)
    with_condition, without = torch.randn(2, 2, 3, 5, generator=draw)
    asked = []

    def logits(output_BLV, name):
        def call(tokens_AL, t_A, rows_A, at_AL):
            asked.append((name, tokens_AL.tolist(), t_A.tolist(), rows_A.tolist()))
            return output_BLV[rows_A][at_AL].clone()

        return call

    canvas, rows, t = torch.tensor([[2, 1, 2], [2, 2, 4]]), torch.tensor([1]), torch.tensor([0.25, 0.5]).double()
    scored = torch.tensor([[False] * 3, [True, True, False]])
    found = {}
    for name, unconditional in (("both", logits(without, "without")), ("one", None)):
        denoise = TextDenoiser(logits=logits(with_condition, "with"), mask_id=2, pad_id=0, vocab_size=5,
                               unconditional=unconditional)  # fmt: skip
        if name == "one" and scale != 1.0:
            with pytest.raises(SamplingError, match=rf"guidance {scale} needs an unconditional prediction"):
                log_x0_at(denoise, process, canvas, t, rows, scored, guidance=scale)
            continue
        asked.clear()
        found[name] = log_x0_at(denoise, process, canvas, t, rows, scored, guidance=scale)
        sides = ["with", "without"] if scale != 1.0 else ["with"]
        assert asked == [(side, [[2, 2, 4]], [0.5], [1]) for side in sides]
        log_x0, output = found[name]
        expected = (scale * with_condition + (1 - scale) * without)[1, :2]
        assert torch.allclose(output, expected, atol=1e-6)
        x0 = process.log_x0(process.x0_logits(expected.clone(), canvas[1, :2], t[[1, 1]]), canvas[1, :2])
        assert torch.allclose(log_x0.exp(), x0.exp(), atol=1e-6)
