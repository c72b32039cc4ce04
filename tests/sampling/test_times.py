"""The time that a model receives in each call, and α of the grid that a sampler follows, against their definitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule
from mm_ldlm.sampling.denoising import State, TextDenoiser
from mm_ldlm.sampling.gaussian import Point, grid, start_noise
from mm_ldlm.sampling.joint import JointDenoiser, together
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import latent_sampler, text_sampler
from mm_ldlm.sampling.remdm import RemdmConfConfig, _open_alpha
from mm_ldlm.sampling.time_grid import make_grid

MASK, PAD, V = 8, 9, 10
STEPS = 4
SCHEDULE = MaskSchedule(name="cosine")
TIMED = ("ancestral", "confidence", "margin", "entropy", "random", "uncertainty", "remdm_cap", "remdm_rescale",
         "remdm_conf")  # fmt: skip
BY_MASKS = ("threshold", "entropy_bounded", "ddpm_cache")
CALLS = [*((kind, source) for kind in TIMED for source in ("schedule", "mask_ratio")),
         *((kind, "mask_ratio") for kind in BY_MASKS)]  # fmt: skip


def watched(seen: list[tuple[Tensor, Tensor, Tensor]], *, mask_id: int = MASK) -> TextDenoiser:
    """A model to which all words are equally likely; keeps the tokens, the times and the rows of each call."""

    def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
        seen.append((tokens_AL.clone(), t_A.double(), rows_A.clone()))
        return torch.zeros(int(asked_AL.sum()), V)

    return TextDenoiser(logits=logits, mask_id=mask_id, pad_id=PAD, vocab_size=V)


def canvas() -> Tensor:
    """Texts of 12, 6 and 9 tokens; three of the first and one of the last are given."""
    tokens = torch.full((3, 12), MASK)
    tokens[0, :3], tokens[1, 6:], tokens[2, 9:], tokens[2, 4] = 1, PAD, PAD, 2
    return tokens


LENGTHS = torch.tensor([12.0, 6.0, 9.0], dtype=torch.float64)


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize(("kind", "source"), CALLS)
def test_the_time_is_that_of_the_grid_or_of_the_masks_of_each_text(kind: str, source: str, restricted: bool) -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    tokens = canvas()
    open_BL = (torch.arange(12) < 8).expand(3, -1) if restricted else None
    settings = {} if kind in ("threshold", "entropy_bounded") else {"timestep": source}
    process = AbsorbingConfig(schedule=SCHEDULE).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    text_sampler(kind, steps=STEPS, **settings).sample(
        watched(seen), tokens, process=process, generator=RowGenerator(0, torch.arange(3)), open_BL=open_BL
    )
    masked = (tokens == MASK).sum(1) / LENGTHS
    left = torch.zeros(3) if open_BL is None else ((tokens == MASK) & ~open_BL).sum(1) / LENGTHS
    first, last = SCHEDULE.time_of_mask_ratio(masked), SCHEDULE.time_of_mask_ratio(left)
    assert len(seen) >= (1 if kind == "ddpm_cache" else 3)
    for step, (found, times, rows) in enumerate(seen):
        if source == "schedule":
            expected = (first + (last - first) * step / STEPS)[rows]
        else:
            expected = SCHEDULE.time_of_mask_ratio((found == MASK).sum(1) / LENGTHS[rows])
        torch.testing.assert_close(times, expected.double(), atol=1e-6, rtol=0)


def test_a_model_is_compared_with_itself_at_an_early_and_a_late_time() -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    process = AbsorbingConfig(schedule=SCHEDULE).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    tokens = canvas()
    made = text_sampler("ddpm_cache", steps=20).sample(
        watched(seen), tokens, process=process, generator=RowGenerator(0, torch.arange(3))
    )
    for (found, times, rows), expected in zip(seen[:2], (0.9, 0.1), strict=True):
        assert torch.equal(found, tokens)
        assert (times.tolist(), rows.tolist()) == (pytest.approx([expected] * 3), [0, 1, 2])
    calls = torch.stack([(rows[:, None] == torch.arange(3)).any(0) for _, _, rows in seen]).sum(0)
    assert made.calls_per_row.tolist() == calls.tolist(), "both calls of the comparison are counted for each text"
    assert made.model_calls == len(seen)


# -- ReMDM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restricted", [False, True])
def test_alpha_of_the_open_positions_goes_from_0_to_1_and_follows_the_schedule_in_a_whole_text(
    restricted: bool,
) -> None:
    """Where tokens are given or masks stay, α is scaled to the part of the grid that the text goes through."""
    tokens = torch.full((2, 8), MASK)
    tokens[1, :3] = 1
    open_BL = (torch.arange(8) < 6).expand(2, -1) if restricted else None
    made = make_grid(watched([]), tokens, schedule=SCHEDULE, steps=STEPS, open_BL=open_BL)
    whole = SCHEDULE.alpha(torch.linspace(1, 0, STEPS + 1, dtype=torch.float64))
    for step in range(STEPS + 1):
        found = _open_alpha(made, step)
        ends = [SCHEDULE.time_of_mask_ratio(torch.tensor(ratio)) for ratio in (1, 0.625, 0.25 if restricted else 0)]
        expected = []
        for start in ends[:2]:
            times = torch.stack([start, start + (ends[2] - start) * step / STEPS, ends[2]])
            first, now, last = SCHEDULE.alpha(times).tolist()
            expected.append((now - first) / (last - first))
        if not restricted:
            expected[0] = float(whole[step])
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_the_weights_of_remasking_are_a_softmax_over_the_written_tokens_of_each_text() -> None:
    log_probs = torch.tensor([[0.9, 0.5, 0.1, 0.7], [0.2, 0.3, 0.4, 0.5], [0.5] * 4]).log()
    written = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])
    state: Any = SimpleNamespace(log_probs=log_probs, written=written)
    found = RemdmConfConfig(eta=0.2).remask_weight(state)
    parts = torch.exp(-torch.tensor([0.9, 0.5, 0.7], dtype=torch.float64))
    parts = 3 * parts / parts.sum()
    expected = torch.tensor([[parts[0], parts[1], 0, parts[2]], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["remdm_cap", "remdm_rescale", "remdm_conf"])
def test_a_text_without_masks_is_masked_again_whether_or_not_another_one_has_masks(kind: str) -> None:
    """Texts of two tokens are often written before the last step."""
    process = AbsorbingConfig(schedule=SCHEDULE).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    tokens = torch.full((30, 40), PAD)
    tokens[:, :2], tokens[-1] = MASK, MASK
    sampler, rows = text_sampler(kind, steps=9, eta=0.36), RowGenerator(0, torch.arange(30))

    def write(some: Tensor, generator: RowGenerator) -> Any:
        return sampler.sample(watched([]), some, process=process, generator=generator)

    together = write(tokens, rows)
    for row in range(29):
        alone = write(tokens[row : row + 1, :2], rows.select(torch.tensor([row])))
        assert torch.equal(alone.tokens[0], together.tokens[row, :2])
        assert torch.equal(alone.steps[0], together.steps[row, :2])
        assert int(alone.calls_per_row[0]) == int(together.calls_per_row[row])


def test_the_numbers_of_a_step_have_a_stream_for_each_name() -> None:
    generator = RowGenerator(3, torch.arange(2))
    state: Any = State(0, 5, torch.zeros(2, 4), None, None, None, generator)  # type: ignore[arg-type]
    assert torch.equal(state.uniform("a"), state.uniform("a"))
    assert not torch.equal(state.uniform("a"), state.uniform("b"))
    assert state.uniform("a").dtype == torch.float64
    assert [State(step, 5, *[None] * 5).last for step in range(5)] == [False] * 4 + [True]  # type: ignore[arg-type]


# -- latents -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signal", "noise"), [(0.0, 1.0), (3.0, 4.0), (0.6, 0.8), (0.5, 0.5)])
def test_the_first_noise_stands_for_the_data_too(signal: float, noise: float) -> None:
    """x_t of data of unit variance has the variance signal² + noise²."""
    found = start_noise(Point(0.7, signal, noise), RowGenerator(1, torch.arange(3)), 5)
    plain = RowGenerator(1, torch.arange(3)).normal(5)
    torch.testing.assert_close(found, (signal**2 + noise**2) ** 0.5 * plain)


@pytest.mark.parametrize("name", ["cosine", "flow"])
@pytest.mark.parametrize("t_max", [1.0, 0.5])
@pytest.mark.parametrize("self_condition", [True, False])
def test_text_and_latent_have_times_of_their_own(name: Any, t_max: float, self_condition: bool) -> None:
    """The text begins at t = 1 in any case, the latent at `t_max`, and the latent's noise fits its own schedule."""
    seen: list[Any] = []
    schedule, generator = GaussianSchedule(name=name), RowGenerator(5, torch.arange(2))

    def predict(tokens: Tensor, t: Tensor, z: Tensor, t_latent: Tensor, asked: Tensor, previous: Any) -> Any:
        seen.append((t.tolist(), z.clone(), t_latent.tolist(), previous))
        return torch.zeros(int(asked.sum()), V), torch.full_like(z, len(seen))

    process = AbsorbingConfig().build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    joint = JointDenoiser(
        predict=predict, process=process, latent_schedule=schedule, parameterisation="x0",
        self_condition=self_condition,
    )  # fmt: skip
    latent = latent_sampler("ddim", steps=STEPS, t_max=t_max)
    made = together(joint, torch.full((2, 6), MASK), dim=3, draw=Draw(), latent=latent, generator=generator)
    for step, (text, _, times, previous) in enumerate(seen):
        assert text == pytest.approx([1 - step / STEPS] * 2)
        assert times == pytest.approx([t_max * (1 - step / STEPS)] * 2)
        if self_condition and step:
            assert torch.equal(previous, torch.full((2, 3), float(step)))
        else:
            assert previous is None
    points = grid(schedule, steps=STEPS, t_max=t_max)
    assert torch.equal(seen[0][1], start_noise(points[0], generator.fork("latent"), 3))
    # a DDIM step from z: the estimate 1 of x0, and the noise that is left of z
    eps = (seen[0][1] - points[0].signal) / points[0].noise
    torch.testing.assert_close(seen[1][1], points[1].signal + points[1].noise * eps, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(made.latent.latents, torch.full((2, 3), float(STEPS)))


@pytest.mark.parametrize("kind", [*TIMED, "remdm_loop", "threshold", "entropy_bounded", "ddpm_cache"])
def test_every_mask_is_written_also_where_the_schedule_ends_with_noise(kind: str) -> None:
    """α_0 of this schedule is 0.6, so that its last step alone would leave four masks of ten."""
    schedule = MaskSchedule(name="geometric", sigma_min=0.5, sigma_max=9.0)
    process = AbsorbingConfig(schedule=schedule).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    tokens = torch.full((6, 10), MASK)
    found = text_sampler(kind, steps=3).sample(
        watched([]), tokens, process=process, generator=RowGenerator(0, torch.arange(6))
    )
    assert (found.tokens < MASK).all()
    assert int(found.steps.max()) <= 2


@pytest.mark.parametrize("kind", ["confidence", "margin", "entropy", "random", "uncertainty"])
@pytest.mark.parametrize("counts", ["linear", "cosine"])
def test_the_masks_that_stay_do_not_count_among_those_that_each_step_unmasks(kind: str, counts: str) -> None:
    """Of twelve masks eight are open: 8·(1 − n/4) or 8·cos(n·π/8) are left after step n."""
    process = AbsorbingConfig(schedule=SCHEDULE).build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    open_BL = (torch.arange(12) % 3 < 2).expand(2, -1)
    found = text_sampler(kind, steps=STEPS, counts=counts).sample(
        watched([]), torch.full((2, 12), MASK), process=process, generator=RowGenerator(0, torch.arange(2)),
        open_BL=open_BL,
    )  # fmt: skip
    written = [2, 2, 2, 2] if counts == "linear" else [1, 2, 2, 3]
    for steps in found.steps.tolist():
        assert [steps.count(step) for step in range(STEPS)] == written
