"""Log-probabilities of single tokens given random halves of the others: which halves, and the average over them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import Output
from mm_ldlm.objectives.registry import OBJECTIVES

B, N, V, PAD, MASK = 6, 9, 12, 0, 1
SHAPE = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N)


class Recorder(nn.Module):
    """Predicts every word alike, and keeps the texts that it was given and the positions that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.seen = nn.Parameter(torch.zeros(1)), list[tuple[Tensor, Tensor]]()

    def forward(self, tokens_BL: Tensor, *, logits_at: Tensor, t_B: Tensor, **_: Any) -> Output:
        assert t_B.tolist() == [0.5] * B, "half of the tokens are noise"
        self.seen.append((tokens_BL, logits_at))
        return Output(torch.zeros(int(logits_at.sum()), V), torch.zeros(N))


def test_every_token_is_predicted_once_in_each_of_several_different_divisions() -> None:
    valid_BL = torch.arange(N) < torch.tensor([9, 8, 7, 6, 2, 1])[:, None]
    tokens_BL = torch.randint(2, V, (B, N), generator=torch.Generator().manual_seed(0)).masked_fill(~valid_BL, PAD)
    model = Recorder()
    generation = parse_kind(OBJECTIVES, {"kind": "text_diffusion"}, at="objective").build(SHAPE).generative_model(model)
    found_BL, calls = generation.token_log_probs(tokens_BL, latents_Bd=None, generator=RowGenerator(3, torch.arange(B)))

    assert calls == len(model.seen) == 4
    divisions = [model.seen[:2], model.seen[2:]]
    for (first, asked), (second, others) in divisions:
        assert torch.equal(asked ^ others, valid_BL)
        assert torch.equal(asked | others, valid_BL)
        for given, masked in ((first, asked), (second, others)):
            assert torch.equal(given, tokens_BL.masked_fill(masked, MASK))
    assert (divisions[0][0][1] ^ divisions[1][0][1])[0].any()
    assert torch.allclose(found_BL, torch.where(valid_BL, -math.log(V - 2), 0.0).double(), atol=1e-6)


def test_the_other_half_is_the_noise_of_the_process_and_the_answer_is_its_posterior() -> None:
    """Scores that are all equal say nothing but what the noise does: q(x_t | x_0), which a quarter of a second word
    keeps. With uniform noise p(x | n) = α [x = n] + (1 − α)/W at every position that shows n."""
    tokens_BL = torch.randint(2, V, (B, N), generator=torch.Generator().manual_seed(0))
    model, process = Recorder(), {"kind": "sedd", "graph": "uniform", "schedule": {"epsilon": 0.0}}
    config = parse_kind(OBJECTIVES, {"kind": "text_diffusion", "process": process}, at="objective")
    generation = config.build(SHAPE).generative_model(model)
    found_BL, _ = generation.token_log_probs(tokens_BL, latents_Bd=None, generator=RowGenerator(3, torch.arange(B)))
    expected_BL = torch.zeros(B, N, dtype=torch.float64)
    for noisy_BL, half_BL in model.seen:
        assert bool((noisy_BL > MASK).all()), "the noise is words"
        assert torch.equal(noisy_BL[~half_BL], tokens_BL[~half_BL])
        p_BL = 0.5 * (noisy_BL == tokens_BL) + 0.5 / (V - 2)
        expected_BL += torch.where(half_BL, p_BL.double().log() / 2, 0.0)
    torch.testing.assert_close(found_BL, expected_BL, rtol=1e-5, atol=1e-6)
    assert found_BL.unique().numel() > 1
