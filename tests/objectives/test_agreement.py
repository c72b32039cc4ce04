"""A multimodal model whose latent is always dropped agrees with the text-only path.

One MMDiT is used twice: by the multimodal objective in the mode l2t with every latent dropped, and, with the learned
null latent in place of a latent, as the text denoiser of the objective `text_diffusion`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.dit import Output
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.sampling.registry import text_sampler

B, N, V, PAD, MASK, D_LATENT = 6, 8, 20, 0, 1, 5
SHAPE = DataShape(vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=N, latent_dim=D_LATENT)
SCHEDULES: list[dict[str, Any]] = [{"name": "log_linear"}, {"name": "cosine"}]
SHARED: dict[str, Any] = {"text_weight": 2.0, "length_weight": 0.5, "z_loss": 1e-3}


class WithoutLatent(nn.Module):
    """MMDiT with the null latent, as a text denoiser."""

    def __init__(self, model: MMDiT) -> None:
        super().__init__()
        self.model = model

    def out(self, tokens_BL: Tensor, heads: Any, **given: Any) -> Any:
        zeros_B = torch.zeros(len(tokens_BL))
        return self.model(
            tokens_BL, latents_Bd=zeros_B.new_zeros(len(tokens_BL), D_LATENT), t_latent_B=zeros_B,
            null_latent_B=torch.ones_like(zeros_B, dtype=torch.bool), heads=heads, **given,
        )  # fmt: skip

    def forward(self, tokens_BL: Tensor, *, valid_BL: Any, t_B: Tensor, logits_at: Tensor | None = None) -> Output:
        found = self.out(tokens_BL, ("text",), valid_BL=valid_BL, t_text_B=t_B, logits_at=logits_at)
        return Output(found.logits_BLV, self.length_logits())

    def length_logits(self) -> Tensor:
        canvas_BL = torch.full((1, 1), MASK)
        logits_BN: Tensor = self.out(canvas_BL, ("length",), valid_BL=None, t_text_B=torch.zeros(1)).length_logits_BN
        return logits_BN[0]


class Recorder(nn.Module):
    """Passes calls on to a model and keeps the texts that it was given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, []

    def forward(self, tokens_BL: Tensor, **given: Any) -> Any:
        self.seen.append(tokens_BL)
        return self.model(tokens_BL, **given)


@pytest.fixture
def model() -> MMDiT:
    """With noise on every parameter, because an MMDiT starts with logits of 0."""
    model = MMDiTConfig(dim=16, depth=2, heads=2, direct_views=True).build(
        SHAPE, generator=torch.Generator().manual_seed(0)
    )
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


def batch(*, latents: bool) -> Batch:
    draw = torch.Generator().manual_seed(2)
    lengths_B = torch.tensor([8, 7, 5, 3, 2, 1])
    valid_BL = torch.arange(N) < lengths_B[:, None]
    tokens_BL = torch.randint(2, V, (B, N), generator=draw).masked_fill(~valid_BL, PAD)
    return Batch(
        tokens_BL=tokens_BL, valid_BL=valid_BL, examples_B=torch.arange(B), position_B=torch.arange(B), global_size=B,
        global_tokens=int(lengths_B.sum()), fields={"latents": torch.randn(B, D_LATENT)} if latents else {},
    )  # fmt: skip


def objectives(schedule: dict[str, Any]) -> tuple[Any, Any]:
    """Multimodal with every latent dropped, and text diffusion, with equal process and equal weights."""
    process = {"kind": "absorbing", "schedule": schedule, "t_min": 0.01}
    both = [
        {"kind": "multimodal", "mode": "l2t", "condition_dropout": 1.0, "process": process, **SHARED},
        {"kind": "text_diffusion", "process": process, **SHARED},
    ]
    first, second = (parse_kind(OBJECTIVES, keys, at="objective").build(SHAPE) for keys in both)
    return first, second


def rows(seed: int = 5) -> RowGenerator:
    return RowGenerator(seed, torch.arange(B))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_both_corrupt_the_same_tokens_and_compute_the_same_losses_and_gradients(
    model: MMDiT, schedule: dict[str, Any]
) -> None:
    found, gradients, corrupted = [], [], []
    for objective, latents in zip(objectives(schedule), (True, False), strict=True):
        recorder = Recorder(model if latents else WithoutLatent(model))
        model.zero_grad()
        losses = objective(recorder, batch(latents=latents), rows(), kind=objective.kind(rows(), step=0), step=0)
        sum(losses[name][0] * weight for name, weight in objective.weights.items() if name in losses).backward()
        found.append({name: [float(x.detach()) for x in value] for name, value in losses.items()})
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        corrupted.append(recorder.seen[0])
    assert (corrupted[0] == MASK).any()
    assert torch.equal(*corrupted)
    assert found[0].keys() == found[1].keys() >= {"text_loss", "z_loss", "length_loss", "text_nll_t0"}
    for name, value in found[0].items():
        assert value == pytest.approx(found[1][name], rel=1e-5), name
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-4), name


def test_both_announce_the_same_first_loss_and_the_same_units() -> None:
    first, second = objectives(SCHEDULES[0])
    assert first.expected_first_loss() == second.expected_first_loss()
    for name in second.weights:
        assert (first.weights[name], first.units[name]) == (second.weights[name], second.units[name])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_both_draw_the_same_likelihoods_and_distributions_over_lengths(model: MMDiT, schedule: dict[str, Any]) -> None:
    tokens_BL, found, lengths = batch(latents=False).tokens_BL, [], []
    for objective, one in zip(objectives(schedule), (model, WithoutLatent(model)), strict=True):
        generation = objective.generative_model(one)
        with generation.evaluating():
            found.append(generation.likelihood(tokens_BL, latents_Bd=None, draws=4, generator=rows()))
            lengths.append(generation.length_log_probs(None, rows=3))
    for name in ("nll_KB", "mask_ratio_KB", "masked_KB", "correct_KB"):
        first, second = (getattr(draws, name) for draws in found)
        assert first.shape == (4, B)
        assert torch.allclose(first, second, rtol=1e-5), name
    assert float(found[0].nll_KB.std(0).max()) > 0
    assert torch.allclose(*lengths, atol=1e-5)


@pytest.mark.parametrize("kind", ["ancestral", "confidence", "remdm_rescale"])
def test_both_draw_the_same_texts(model: MMDiT, kind: str) -> None:
    tokens_BL = batch(latents=False).tokens_BL
    open_BL = (tokens_BL != PAD) & (torch.arange(N) != 1)
    found = []
    for objective, one in zip(objectives(SCHEDULES[0]), (model, WithoutLatent(model)), strict=True):
        generation = objective.generative_model(one)
        with generation.evaluating():
            found.append(
                generation.write(
                    tokens_BL.masked_fill(open_BL, MASK),
                    open_BL,
                    latents_Bd=None,
                    sampler=text_sampler(kind, steps=6),
                    generator=rows(),
                )
            )
    assert torch.equal(found[0].tokens, found[1].tokens)
    assert torch.equal(found[0].steps, found[1].steps)
    assert torch.allclose(found[0].log_probs, found[1].log_probs, atol=1e-4)
    assert torch.equal(found[0].tokens[~open_BL], tokens_BL[~open_BL])
    assert not (found[0].tokens == MASK).any()


@pytest.mark.parametrize("conditional", [True, False])
def test_both_have_the_same_default_sampler(model: MMDiT, conditional: bool) -> None:
    samplers = [each.generative_model(model).default_sampler(conditional=conditional) for each in objectives({})]
    assert samplers[0] == samplers[1]
