"""The joint sampler of texts and token states: what the model receives, and estimates and lengths at their bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.gaussian import FLOOR
from mm_ldlm.diffusion.process import ProcessTraits
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.denoising import StateDenoiser, TextDenoiser
from mm_ldlm.sampling.gaussian import Point, estimate_at, grid
from mm_ldlm.sampling.lengths import refuse_long
from mm_ldlm.sampling.registry import text_sampler

MASK, PAD, V, DIM, STEPS = 8, 9, 10, 2, 4
SCHEDULE = GaussianSchedule(name="flow")


def clean(length: int) -> Tensor:
    """States (L, d), each number of which is another one."""
    return torch.arange(float(length * DIM)).view(length, DIM) / 8


def sampled(
    lengths: list[int], *, rows: list[int] | None = None, open_BL: Tensor | None = None, **settings: Any
) -> tuple[Any, list[Any]]:
    """Sample texts of these lengths; returns the sample and what the model received in each call."""
    seen: list[Any] = []

    def states(tokens: Tensor, t: Tensor, z: Tensor, t_state: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((tokens.clone(), t.tolist(), z.clone(), t_state.tolist(), asked.clone()))
        return torch.zeros(int(asked.sum()), V), clean(tokens.shape[1]).expand(len(tokens), -1, -1)

    def dropped(tokens: Tensor, t: Tensor, rows_A: Tensor, asked: Tensor) -> Tensor:
        seen[-1] += (rows_A.tolist(), torch.equal(asked, seen[-1][4]))
        return torch.zeros(int(asked.sum()), V)

    denoise = TextDenoiser(
        logits=dropped, mask_id=MASK, pad_id=PAD, vocab_size=V,
        states=StateDenoiser(predict=states, dim=DIM, schedule=SCHEDULE, dropped=True),
    )  # fmt: skip
    tokens = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        tokens[row, :length] = MASK
    process = AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    generator = RowGenerator(0, torch.tensor(rows or list(range(len(lengths)))))
    found = text_sampler("joint_states", steps=STEPS, **settings).sample(
        denoise, tokens, process=process, generator=generator, open_BL=open_BL
    )
    return found, seen


def test_each_state_goes_from_noise_to_the_estimate_of_its_own_token() -> None:
    _, seen = sampled([5, 3])
    points = grid(SCHEDULE, steps=STEPS, t_max=1.0)
    first = seen[0][2]
    assert first.shape == (2, 5, DIM)
    for number, (_, text, z, state, _) in enumerate(seen):
        assert text == state == pytest.approx([1 - number / STEPS] * 2)
        expected = points[number].signal * clean(5) + points[number].noise * first
        torch.testing.assert_close(z, expected.expand(2, -1, -1), atol=1e-5, rtol=1e-5)
    assert len(seen) == STEPS


def test_the_states_of_a_text_do_not_depend_on_the_padding_of_its_batch() -> None:
    whole, together = sampled([5, 3], eta=0.5)
    alone, single = sampled([3], rows=[1], eta=0.5)
    assert torch.equal(whole.tokens[1, :3], alone.tokens[0])
    for (_, _, z, _, _), (_, _, own, _, _) in zip(together, single, strict=True):
        torch.testing.assert_close(z[1, :3], own[0])


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_prediction_without_states_is_asked_for_at_the_same_positions(guidance: float) -> None:
    found, seen = sampled([5, 3], guidance=guidance)
    assert all(call[5:] == (() if guidance == 1.0 else ([0, 1], True)) for call in seen)
    calls = STEPS if guidance == 1.0 else 2 * STEPS
    assert (found.calls_per_row.tolist(), found.model_calls) == ([calls] * 2, calls)


def test_only_open_masks_are_written_and_asked_for() -> None:
    open_BL = torch.tensor([[False, True, True, False, True], [True, False, True, True, True]])
    found, seen = sampled([5, 3], open_BL=open_BL)
    expected = torch.tensor([[False, True, True, False, True], [True, False, True, False, False]])
    assert torch.equal(seen[0][4], expected)
    assert torch.equal(found.steps >= 0, expected)
    assert (found.tokens[0, [0, 3]] == MASK).all()
    assert found.tokens[1, 3:].tolist() == [PAD, PAD]


# -- estimates and lengths at their bounds -----------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1.0, 0.9])
def test_noise_says_nothing_of_the_data_where_no_signal_is_left(t: float) -> None:
    x = torch.tensor([[2.0, -1.0]])
    for signal in (0.0, FLOOR / 2, FLOOR):
        with pytest.raises(SamplingError, match=rf"no estimate of x0 at t={t}, where no signal is left"):
            estimate_at(Point(t, signal, 1.0), torch.ones(1, 2), "eps", x_t_Bd=x)
    x0, eps = estimate_at(Point(t, 0.5, 1.0), torch.ones(1, 2), "eps", x_t_Bd=x)
    assert (x0.tolist(), eps.tolist()) == ([[2.0, -4.0]], [[1.0, 1.0]])
    x0, eps = estimate_at(Point(t, 0.0, 1.0), torch.ones(1, 2), "x0", x_t_Bd=x)
    assert (x0.tolist(), eps.tolist()) == ([[1.0, 1.0]], [[2.0, -1.0]])


MASKED, WORDS = ProcessTraits(kind="a", only_masks=True), ProcessTraits(kind="b")
BLOCKS, PLAIN = text_sampler("blocks", inner={"kind": "random"}), text_sampler("random")


@pytest.mark.parametrize("length", [None, "argmax", "top-3", 1, 9, 10, 11, 10**9])
@pytest.mark.parametrize("sampler", [None, PLAIN, BLOCKS])
@pytest.mark.parametrize("process", [None, MASKED, WORDS])
def test_a_number_of_tokens_beyond_the_model_is_for_blocks(length: Any, sampler: Any, process: Any) -> None:
    found = refuse_long(length, max_length=9, sampler=sampler, process=process)
    if length in (None, "argmax", "top-3", 1, 9) or sampler is BLOCKS:
        assert found is None
        return
    advice = ", or use the sampler 'blocks'" if process is MASKED else ""
    assert found == (
        f"expected a text of at most 9 tokens, the model's maximum length; found a request for {length}. Request a "
        f"shorter text{advice}."
    )
