"""Search and ReMDM in closed form: the log-probability of every written token, and α at every time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.sampling.config import SearchConfig

from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.registry import text_sampler
from mm_ldlm.sampling.remdm import RemdmLoopConfig
from mm_ldlm.sampling.search import search

MASK, PAD = 900, 901


class Numbered:
    """Each call writes tokens of its own number, at log-probability −number; later texts are nearer to the target."""

    def __init__(self) -> None:
        self.greedy: list[bool] = []

    def write(self, canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        self.greedy.append(greedy)
        number = len(self.greedy)
        written = canvas == MASK
        tokens = torch.where(written, number, canvas)
        log_probs = torch.where(written, -float(number), 0.0)
        ones = torch.ones(len(canvas), dtype=torch.long)
        return TextSample(tokens, log_probs, torch.zeros_like(tokens), ones, 1)

    def nearness(self, tokens: Any, target: Any) -> Any:
        return tokens.float().mean(1) / 1000


def searched(rows: Any, **changes: Any) -> tuple[Numbered, Any]:
    bench, config = Numbered(), SearchConfig(**({"candidates": 3, "rounds": 2, "good_enough": 2.0} | changes))
    canvas = torch.full((2, config.candidates, 8), MASK)
    return bench, search(
        canvas, config=config, write=bench.write, nearness=bench.nearness, mask_id=MASK, pad_id=PAD, generator=rows(2)
    )


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_every_token_has_the_log_probability_of_the_call_that_wrote_it(beam: int, ratio: float, rows: Any) -> None:
    _, result = searched(rows, beam=beam, remask_ratio=ratio)
    assert (result.tokens > 3).any(), "the children won"
    assert (result.tokens <= 3).any(), "a child keeps the other tokens of its parent"
    assert torch.equal(result.log_probs, -result.tokens.float())


def test_only_the_first_candidate_is_greedy(rows: Any) -> None:
    """Children that are all greedy would write the same text again and again."""
    bench, _ = searched(rows)
    assert bench.greedy == [True, *[False] * 2, *[False] * 6]


def test_a_beam_holds_different_texts(rows: Any) -> None:
    """With two equal candidates, the beam of two keeps the third text beside one of them."""

    class Twice(Numbered):
        def write(self, canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
            sample = super().write(canvas, target, generator, greedy)
            number = len(self.greedy)
            return (
                sample
                if number != 2
                else TextSample(
                    torch.where(canvas == MASK, 1, canvas), sample.log_probs, sample.steps, sample.calls_per_row, 1
                )
            )

        def nearness(self, tokens: Any, target: Any) -> Any:
            return 1 - tokens.float().mean(1) / 1000  # the repeated text is the nearest

    bench, seen = Twice(), []
    inner = bench.write

    def write(canvas: Any, target: Any, generator: Any, greedy: bool) -> TextSample:
        seen.append(canvas)
        return inner(canvas, target, generator, greedy)

    search(
        torch.full((1, 3, 8), MASK), config=SearchConfig(candidates=3, rounds=1, beam=2, good_enough=2.0), write=write,
        nearness=bench.nearness, mask_id=MASK, pad_id=PAD, generator=rows(1),
    )  # fmt: skip
    parents = [set(canvas[canvas != MASK].tolist()) for canvas in seen[3:]]
    assert parents == [{1}, {3}, {1}]


@pytest.mark.parametrize(("t_on", "t_off", "alpha_on"), [(0.55, 0.05, 0.9), (0.8, 0.3, 0.6), (1.0, 0.0, 0.4)])
def test_the_loop_of_remdm_has_three_parts(t_on: float, t_off: float, alpha_on: float) -> None:
    """α rises to α_on until t_on, stays until t_off, and rises to 1 at t = 0; only in between are tokens masked."""
    sampler = RemdmLoopConfig(t_on=t_on, t_off=t_off, alpha_on=alpha_on)
    steps = 40
    grid: Any = SimpleNamespace(steps=steps, start_B=torch.ones(1, dtype=torch.float64))
    for step in range(steps):
        level = sampler.level(grid, step)
        for time, found in ((1 - step / steps, level.now), (1 - (step + 1) / steps, level.then)):
            if time > t_on:
                expected = alpha_on * (1 - time) / (1 - t_on)
            elif time > t_off:
                expected = alpha_on
            else:
                expected = 1 - (1 - alpha_on) * time / t_off if t_off else 1.0
            assert float(found) == pytest.approx(expected, abs=1e-6), time
        now = 1 - step / steps
        assert level.remasking == (t_off < now <= t_on), "past its end the loop masks nothing"
    assert float(sampler.level(grid, steps - 1).then) == 1.0
    assert math.isfinite(float(level.unmask_probability(torch.zeros(1, dtype=torch.float64))))


def test_each_block_draws_its_own_noise() -> None:
    """Under a uniform model, two blocks that the model reads in the same places agree in one of eight tokens."""
    denoise = TextDenoiser.dense(
        lambda tokens, t: torch.zeros(*tokens.shape, 10), mask_id=8, pad_id=9, vocab_size=10
    )  # fmt: skip
    process = AbsorbingConfig().build(vocab_size=10, pad_id=9, mask_id=8)
    sampler = text_sampler("blocks", block_length=4, inner={"kind": "ancestral", "steps": 2})
    canvas = torch.full((500, 8), 8)
    sample = sampler.sample(
        denoise, canvas, process=process, generator=RowGenerator(0, torch.arange(500)), window=4
    )  # fmt: skip
    same = (sample.tokens[:, :4] == sample.tokens[:, 4:]).float().mean()
    assert float(same) == pytest.approx(1 / 8, abs=0.03)
