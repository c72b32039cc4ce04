"""Classifier-free guidance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.toys import HEAD, build, on

from mm_ldlm.core import SamplingError
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.guidance import guide_log_probs, guide_prediction


@given(st.floats(0, 8), st.integers(0, 1000))
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


@pytest.mark.parametrize("process", ["absorbing", "uniform", "sedd"])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_the_guided_estimate_of_a_text_has_both_sides(process, scale):
    """Scores are guided themselves; every other model by its log-probabilities. The second text has no evaluated token."""
    made, draw = build(process), torch.Generator().manual_seed(0)
    sides = [torch.randn(2, 3, HEAD, generator=draw) for _ in range(2)]
    canvas_BL, scored_BL = torch.tensor([[8, 1, 8], [8, 8, 4]]), torch.tensor([[False] * 3, [True, True, False]])
    t_B, rows_A = torch.tensor([0.25, 0.5]).double(), torch.tensor([1])
    noisy_M, t_M = canvas_BL[1, :2], t_B[[1, 1]]
    asked = []

    def logits(side):
        def call(tokens_AL, t_A, rows_A, at_AL):
            asked.append((side, tokens_AL.tolist(), t_A.tolist(), rows_A.tolist()))
            return sides[side][rows_A][at_AL].clone()

        return call

    def log_x0(output_MV):
        return made.log_x0(made.x0_logits(output_MV.clone(), noisy_M, t_M), noisy_M)

    def guide(**more):
        denoise = TextDenoiser(logits=logits(0), **more)
        return on(denoise, canvas_BL, process).guided_log_x0(canvas_BL, t_B, rows_A, scored_BL, guidance=scale)

    if scale != 1.0:
        with pytest.raises(SamplingError, match=f"guidance {scale}"):
            guide()
    asked.clear()
    found_MV, output_MV = guide(unconditional=logits(1))
    assert asked == [(side, [[8, 8, 4]], [0.5], [1]) for side in range(1 if scale == 1.0 else 2)]
    both = [side[1, :2] for side in sides]
    if process == "sedd":
        expected_MV = log_x0(scale * both[0] + (1 - scale) * both[1])
        assert torch.allclose(output_MV, scale * both[0] + (1 - scale) * both[1], atol=1e-5)
    else:
        expected_MV = guide_log_probs(log_x0(both[0]), log_x0(both[1]), scale=scale)
    assert torch.allclose(found_MV.exp(), expected_MV.exp(), atol=1e-5)
