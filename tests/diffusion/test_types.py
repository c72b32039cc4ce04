"""Types of numbers: times of half precision are read in float32, noise has the type of the data, and scores lie where
tokens do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_traits import CASES, IDS, STORES

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.distributions import categorical
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule, MaskSchedule
from mm_ldlm.families.atat.masking_policies import mask_rates
from mm_ldlm.families.d3pm.process import D3pmConfig
from mm_ldlm.families.hdlm import process as hdlm
from mm_ldlm.families.sedd.process import SeddConfig
from mm_ldlm.families.uniform.gidd import GiddConfig
from mm_ldlm.families.uniform.uniform import UniformConfig

WIDE = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32,
        torch.float16: torch.float32}  # fmt: skip
T = [0.125, 0.5, 0.9375]  # exact in every type


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", ["log_linear", "cosine", "geometric"])
def test_a_mask_schedule_computes_in_float32_or_wider(name: Any, dtype: torch.dtype) -> None:
    schedule, t, exact = MaskSchedule(name=name), torch.tensor(T, dtype=dtype), torch.tensor(T, dtype=torch.float64)
    for function in (schedule.alpha, schedule.mask_probability, schedule.alpha_prime, schedule.weight):
        found = function(t)
        assert found.dtype == WIDE[dtype]
        torch.testing.assert_close(found.double(), function(exact), rtol=1e-5, atol=1e-6)
    found = schedule.inverse(schedule.alpha(exact).to(dtype))
    assert found.dtype == WIDE[dtype]


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("name", ["cosine", "linear", "sigmoid", "flow"])
def test_a_gaussian_schedule_computes_in_float32_or_wider(name: Any, dtype: torch.dtype) -> None:
    schedule, t = GaussianSchedule(name=name), torch.tensor(T, dtype=dtype)
    for function in (schedule.signal, schedule.noise, schedule.alpha_bar, schedule.snr):
        found = function(t)
        assert found.dtype == WIDE[dtype]
        torch.testing.assert_close(found.double(), function(torch.tensor(T).double()), rtol=1e-4, atol=1e-6)
    assert schedule.noise(t) is not t, "a tensor of its own"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scales", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["eps", "x0", "v", "flow"])
def test_noise_and_predictions_have_the_type_of_the_latents(kind: Any, dtype: torch.dtype, scales: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x0, noise = (torch.randn(3, 2, 2, generator=draw, dtype=dtype) for _ in range(2))
    given = {
        "signal_B": torch.tensor([0.6, 0.8, 0.28], dtype=scales),
        "noise_scale_B": torch.tensor([0.8, 0.6, 0.96], dtype=scales),
    }
    x_t = gaussian.add_noise(x0, noise, **given)
    target = gaussian.target(kind, x0, noise, **given)
    both = gaussian.to_x0_and_eps(target, kind, x_t_Bd=x_t, **given)
    assert {each.dtype for each in (x_t, target, *both)} == {dtype}
    torch.testing.assert_close(both, (x0, noise), rtol=1e-4, atol=1e-5)
    for other in ("eps", "x0", "v", "flow"):
        found = gaussian.convert(target, kind, other, x_t_Bd=x_t, **given)  # type: ignore[arg-type]
        assert found.dtype == dtype
        expected = gaussian.target(other, x0, noise, **given)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["eps", "x0"])
def test_the_limit_of_a_denominator_acts_below_it_alone(kind: Any) -> None:
    """At s or n of twice the limit the quotient is exact, and at 0 it is that of the limit."""
    x_t, p = torch.full((2, 1), 3.0).double(), torch.zeros(2, 1).double()
    small = torch.tensor([2 * gaussian.FLOOR, 0.0]).double()
    given = {"signal_B": torch.ones(2).double(), "noise_scale_B": torch.ones(2).double()}
    given["signal_B" if kind == "eps" else "noise_scale_B"] = small
    found = gaussian.to_x0_and_eps(p, kind, x_t_Bd=x_t, **given)[0 if kind == "eps" else 1]
    torch.testing.assert_close(found[:, 0], torch.tensor([1.5e6, 3e6]).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_only_valid_positions_are_scored_whatever_stands_there(kind: str, options: dict[str, Any]) -> None:
    config = parse_kind(TEXT_PROCESSES, {"kind": kind, **options}, at="process")
    process = config.build(**IDS, **{name: STORES[name] for name in config.stores})
    masks = torch.full((3, 4), IDS["mask_id"])
    valid = torch.arange(4) < torch.tensor([[4], [2], [0]])
    assert torch.equal(process.scored(masks, valid), valid), "a mask is scored by every process"
    words = torch.full((3, 4), 2)
    final = process.mask_schedule is not None or kind == "hdlm"
    assert torch.equal(process.scored(words, valid), torch.zeros_like(valid) if final else valid)


@pytest.mark.parametrize("seen", [1, 3])
def test_a_word_is_the_most_probable_where_its_score_exceeds_that_of_the_word_that_stands_there(seen: int) -> None:
    """The score of the word that stands there is 1, whatever the model's output at it; a tie does not replace it."""
    process = SeddConfig(graph="uniform").build(**IDS)
    output = torch.full((3, 6), -2.0)
    output[:, seen] = 9.0
    output[0, 2], output[1, 2] = 0.0, 1e-3
    found = process.token_losses(output, torch.full((3,), 4), torch.full((3,), seen), torch.full((3,), 0.5))
    assert found.best_M.tolist() == [seen, 2, seen]


def test_the_constants_of_a_process_are_those_of_its_configuration() -> None:
    process = AbsorbingConfig(t_min=0.25).build(vocab_size=9, pad_id=7, mask_id=8)
    assert (process.t_min, process.vocab_size, process.pad_id, process.mask_id) == (0.25, 9, 7, 8)
    assert process.first_noise_id == 9
    beyond = AbsorbingConfig().build(vocab_size=4, pad_id=6, mask_id=5)
    assert beyond.first_noise_id == 7
    assert torch.tensor(beyond.initial_nll() or 0.0).exp().round() == 4


# -- float64 from float32 ----------------------------------------------------------------------------------------------

TIMES = torch.tensor([1e-3, 0.3, 0.999])
EARLIER = torch.tensor([1e-4, 0.2, 0.5])
MASKED = torch.tensor([True, False, True])


def policies() -> list[torch.Tensor]:
    valid = torch.ones(3, 4, dtype=torch.bool)
    importance = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    names: tuple[Any, ...] = ("uniform", "importance", "inverse", "balanced")
    return [x for name in names for x in mask_rates(name, importance, valid, TIMES, schedule=MaskSchedule())]


WIDENED: dict[str, Any] = {
    "noise of uniform": lambda: UniformConfig().build(**IDS).noise(TIMES),
    "noise of gidd": lambda: GiddConfig().build(**IDS).noise(TIMES),
    "levels of hdlm": lambda: hdlm.Levels.at(TIMES, gamma=1.5),
    "rate of hdlm": lambda: [hdlm.mask_rate(TIMES, gamma=1.5), hdlm.mask_rate(TIMES, gamma=1)],
    "weights of hdlm": lambda: hdlm.weights(TIMES, gamma=1.5),
    "steps of hdlm": lambda: hdlm.reverse_probabilities(MASKED, t_M=TIMES, s_M=EARLIER, gamma=1.5),
    "weight of d3pm": lambda: [D3pmConfig(steps=1000).build(**IDS).weight(TIMES)],
    "rates of masking": policies,
    "time of a mask ratio": lambda: [MaskSchedule().time_of_mask_ratio(TIMES)],
}


@pytest.mark.parametrize("name", WIDENED)
def test_probabilities_and_rates_are_float64_whatever_the_type_of_the_times(name: str) -> None:
    assert {each.dtype for each in WIDENED[name]()} == {torch.float64}


def test_a_draw_adds_up_small_probabilities_in_float64() -> None:
    """A thousand words of 1e-9 beside one of 1: in float32 the sum would stay 1, and the last word would be drawn."""
    probs = torch.cat([torch.ones(1), torch.full((1000,), 1e-9)])
    below = 1e-9 * torch.tensor([999.5, 500.5, 0.5], dtype=torch.float64) / (1 + 1e-6)
    assert categorical(probs.expand(3, -1), 1 - below).tolist() == [1, 500, 1000]
