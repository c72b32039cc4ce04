"""The times that a model receives: float32 numbers, one for each text of the call, on every way to write a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.denoising import StateDenoiser, TextDenoiser
from mm_ldlm.sampling.gaussian import LatentDenoiser
from mm_ldlm.sampling.joint import JointDenoiser, together
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS, latent_sampler, text_sampler

MASK, PAD, V = 8, 9, 10
KINDS = [kind for kind in TEXT_SAMPLERS.known if kind != "autoregressive"]


def process(kind: str) -> Any:
    return parse_kind(TEXT_PROCESSES, {"kind": kind}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_sampler_asks_with_float32_times_for_the_texts_of_the_call(kind: str, guidance: float) -> None:
    """Times are computed in float64; weights of float32 cannot be multiplied by them."""
    seen: list[tuple[str, Tensor, int]] = []

    def logits(side: str) -> Any:
        def answer(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            assert len(rows_A) == len(tokens_AL) == len(asked_AL)
            seen.append((side, t_A, len(tokens_AL)))
            return torch.zeros(int(asked_AL.sum()), V)

        return answer

    def importance(tokens_AL: Tensor, t_A: Tensor) -> Tensor:
        seen.append(("importance", t_A, len(tokens_AL)))
        return torch.ones(tokens_AL.shape)

    def states(tokens: Tensor, t: Tensor, z: Tensor, t_state: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend([("text", t, len(tokens)), ("state", t_state, len(tokens))])
        assert z.dtype == torch.float32
        return torch.zeros(int(asked.sum()), V), torch.zeros_like(z)

    denoise = TextDenoiser(
        logits=logits("given"), unconditional=logits("null"), mask_id=MASK, pad_id=PAD, vocab_size=V,
        states=StateDenoiser(predict=states, dim=2, schedule=GaussianSchedule(), dropped=True), importance=importance,
    )  # fmt: skip
    own: dict[str, Any] = {"steps": 3, "guidance": guidance}
    if kind == "blocks":
        own = {"inner": {"kind": "ancestral", **own}}
    tokens = torch.full((3, 6), MASK)
    tokens[1, 2:], tokens[2] = PAD, 5
    text_sampler(kind, **own).sample(
        denoise, tokens, process=process("uniform" if kind == "self_correction" else "absorbing"),
        generator=RowGenerator(0, torch.arange(3)),
    )  # fmt: skip
    expected = {"given"} if kind != "joint_states" else {"text", "state"}
    expected |= {"importance"} if kind == "uncertainty" else set()
    if guidance != 1.0:
        expected |= {"given"} if kind == "joint_states" else {"null"}
    assert {side for side, _, _ in seen} == expected
    for side, times, count in seen:
        assert (times.dtype, tuple(times.shape)) == (torch.float32, (count,)), side
        assert ((times >= 0) & (times <= 1)).all()


@pytest.mark.parametrize("kind", LATENT_SAMPLERS.known)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_latent_sampler_asks_with_float32_times(kind: str, dtype: torch.dtype) -> None:
    seen: list[Tensor] = []

    def predict(x: Tensor, t: Tensor, previous: Tensor | None) -> Tensor:
        assert x.dtype == dtype
        seen.append(t)
        return torch.zeros_like(x)

    denoise = LatentDenoiser(
        predict=predict, unconditional=predict, parameterisation="x0", schedule=GaussianSchedule()
    )  # fmt: skip
    latent_sampler(kind, guidance=2.0).sample(denoise, dim=2, generator=RowGenerator(0, torch.arange(3)), dtype=dtype)
    assert seen
    assert {(t.dtype, tuple(t.shape)) for t in seen} == {(torch.float32, (3,))}


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_a_text_and_its_latent_are_denoised_together_with_float32_times(kind: str) -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def predict(tokens: Tensor, t: Tensor, z: Tensor, t_latent: Tensor, asked: Tensor, previous: Any) -> Any:
        seen.append((t, t_latent, z))
        return torch.zeros(int(asked.sum()), V), torch.zeros_like(z)

    joint = JointDenoiser(
        predict=predict, process=process(kind), latent_schedule=GaussianSchedule(), parameterisation="x0"
    )  # fmt: skip
    together(
        joint, torch.full((2, 4), MASK), dim=3, draw=Draw(), latent=latent_sampler("ddim", steps=4, eta=0.5),
        generator=RowGenerator(0, torch.arange(2)),
    )  # fmt: skip
    assert {(each.dtype, len(each)) for call in seen for each in call} == {(torch.float32, 2)}
