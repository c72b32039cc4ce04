"""What every sampler reports beside its texts: log-probabilities, steps and calls, against closed forms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.denoising import StateDenoiser, TextDenoiser
from mm_ldlm.sampling.guidance import guide_log_probs
from mm_ldlm.sampling.joint import JointDenoiser, together
from mm_ldlm.sampling.logit_filters import Draw
from mm_ldlm.sampling.registry import TEXT_SAMPLERS, latent_sampler, text_sampler

MASK, PAD, V = 8, 9, 10
WORDS = torch.tensor([0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
OTHERS = torch.tensor([0.05, 0.1, 0.1, 0.15, 0.15, 0.15, 0.15, 0.15])
KINDS = tuple(kind for kind in TEXT_SAMPLERS.known if kind != "autoregressive")
STEPS = 6


def logits_of(words: torch.Tensor) -> torch.Tensor:
    return torch.cat([words.log(), torch.full((2,), 30.0)])  # [MASK] and [PAD] have the highest logits


def denoiser(*, drops: bool = False) -> TextDenoiser:
    """The same distribution at every position and time, and another one without the condition.

    With `drops` the condition are the states of the tokens, which `logits` drops.
    """

    def make(words: torch.Tensor) -> Any:
        return lambda tokens, t, rows, asked: logits_of(words).expand(int(asked.sum()), V).clone()

    def states(tokens: Any, t: Any, z: Any, t_state: Any, asked: Any) -> Any:
        return make(WORDS)(tokens, t, None, asked), z.tanh()

    return TextDenoiser(
        logits=make(OTHERS if drops else WORDS), unconditional=make(OTHERS), mask_id=MASK, pad_id=PAD, vocab_size=V,
        states=StateDenoiser(predict=states, dim=2, schedule=GaussianSchedule(), dropped=True),
    )  # fmt: skip


def canvas() -> torch.Tensor:
    """A whole text, a shorter one with a given word, and one without masks."""
    tokens = torch.full((3, 10), MASK)
    tokens[1, 7:], tokens[1, 2], tokens[2] = PAD, 3, 5
    return tokens


def sampled(
    kind: str, tokens: torch.Tensor, *, open_BL: Any = None, process: str | None = None, **settings: Any
) -> Any:
    process = process or {"self_correction": "uniform"}.get(kind, "absorbing")
    made = parse_kind(TEXT_PROCESSES, {"kind": process}, at="process").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    own = {"ddpm_cache": {"timestep": "mask_ratio"}, "remdm_conf": {"eta": 0.3}}.get(kind, {})
    if kind == "blocks":
        settings = {"block_length": 4, "inner": {"kind": "confidence", "steps": STEPS, **settings}}
    else:
        settings = {"steps": STEPS, **settings}
    generator = RowGenerator(1, torch.arange(len(tokens)))
    return text_sampler(kind, **own, **settings).sample(
        denoiser(drops=kind == "joint_states"), tokens, process=made, generator=generator, window=8, open_BL=open_BL
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_the_log_probability_of_a_token_is_that_of_the_model_before_temperature_and_filters(
    kind: str, guidance: float
) -> None:
    tokens = canvas()
    found = sampled(kind, tokens, guidance=guidance, temperature=0.7, top_k=6)
    masked = tokens == MASK
    expected = guide_log_probs(WORDS.log()[None], OTHERS.log()[None], scale=guidance)[0]
    assert torch.equal(found.tokens[~masked], tokens[~masked])
    assert int(found.tokens[masked].max()) < 8
    assert torch.allclose(found.log_probs[masked], expected[found.tokens[masked]], atol=1e-5)
    assert (found.log_probs[~masked] == 0).all()
    assert (found.steps[~masked] == -1).all()
    calls = found.calls_per_row.tolist()
    price = 1 if guidance == 1.0 else 2
    assert all(count % price == 0 for count in (*calls, found.model_calls))
    assert found.model_calls >= max(calls)
    if kind not in ("joint_states", "self_correction"):
        assert calls[2] == 0, "nothing is written in the last text"


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_of_a_text_are_those_in_which_it_was_evaluated(kind: str) -> None:
    """A step that wrote a token is a call of that text, and no step is beyond the last one."""
    tokens = torch.full((5, 12), MASK)
    found = sampled(kind, tokens)
    for steps, calls in zip(found.steps.tolist(), found.calls_per_row.tolist(), strict=True):
        assert min(steps) >= 0 or kind == "self_correction", "whose prior may be right from the start"
        assert len({*steps} - {-1}) <= calls
        most = STEPS * 3 if kind == "blocks" else STEPS + 32 if kind == "self_correction" else STEPS
        assert max(steps) < most
        assert calls <= most


@pytest.mark.parametrize("process", ["absorbing", "uniform"])
def test_the_first_step_is_number_zero_and_a_guided_call_costs_two(process: str) -> None:
    tokens = torch.full((40, 12), MASK)
    found = sampled("ancestral", tokens, process=process, steps=1, guidance=2.0)
    numbers = {0} if process == "absorbing" else {-1, 0}  # a word of the uniform prior may stay
    assert set(found.steps.flatten().tolist()) == numbers
    assert set(found.calls_per_row.tolist()) == {2}
    assert found.model_calls == 2


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "self_correction"])
def test_masks_that_are_not_open_stay_and_cost_nothing(kind: str) -> None:
    tokens = torch.full((2, 8), MASK)
    open_BL = torch.zeros(2, 8, dtype=torch.bool)
    open_BL[0, 2:5] = True
    found = sampled(kind, tokens, open_BL=open_BL)
    assert (found.tokens[~open_BL] == MASK).all()
    assert (found.tokens[open_BL] < 8).all()
    assert (found.steps[~open_BL] == -1).all()
    assert (found.log_probs[~open_BL] == 0).all()
    if kind != "joint_states":
        assert int(found.calls_per_row[1]) == 0


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("restricted", [False, True])
def test_a_text_and_its_latent_that_are_denoised_together(eta: float, restricted: bool) -> None:
    """The latent is predicted exactly, so that it is that prediction, and every step is one call of each text."""
    x0 = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
    seen: list[Any] = []

    def predict(tokens: Any, t: Any, z: Any, t_latent: Any, asked: Any, previous: Any) -> Any:
        seen.append((int(asked.sum()), previous))
        return logits_of(WORDS).expand(int(asked.sum()), V).clone(), x0

    process = parse_kind(TEXT_PROCESSES, {"kind": "absorbing"}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    joint = JointDenoiser(
        predict=predict, process=process, latent_schedule=GaussianSchedule(), parameterisation="x0",
        self_condition=True,
    )  # fmt: skip
    tokens = torch.full((2, 6), MASK)
    tokens[0, 0], tokens[1, 4:] = 2, PAD
    open_BL = None if not restricted else torch.arange(6)[None].expand(2, -1) < 3
    found = together(
        joint, tokens, dim=3, draw=Draw(temperature=0.5), latent=latent_sampler("ddim", steps=5, eta=eta),
        generator=RowGenerator(0, torch.arange(2)), open_BL=open_BL,
    )  # fmt: skip
    written = (tokens == MASK) if open_BL is None else (tokens == MASK) & open_BL
    assert torch.allclose(found.latent.latents, x0, atol=1e-5)
    assert torch.equal(found.latent.draws[0], found.latent.latents)
    assert torch.equal(found.text.tokens[~written], tokens[~written])
    assert torch.allclose(found.text.log_probs[written], WORDS.log()[found.text.tokens[written]])
    assert (found.text.log_probs[~written] == 0).all()
    assert ((found.text.steps >= 0) == written).all()
    assert found.text.calls_per_row.tolist() == [5, 5]
    assert (found.model_calls, found.text.model_calls, found.latent.model_calls, len(seen)) == (5, 5, 5, 5)
    assert seen[0] == (int(written.sum()), None)
    assert all(torch.equal(previous, x0) for _, previous in seen[1:])


def test_a_closed_state_denoiser_is_told_apart_from_one_that_drops_its_states() -> None:
    plain = denoiser()
    assert plain.states is not None
    kept = dataclasses.replace(plain, states=dataclasses.replace(plain.states, dropped=False))
    process = parse_kind(TEXT_PROCESSES, {"kind": "absorbing"}, at="p").build(vocab_size=V, pad_id=PAD, mask_id=MASK)
    generator = RowGenerator(0, torch.arange(1))
    given = {"process": process, "generator": generator}
    tokens = torch.full((1, 4), MASK)
    assert text_sampler("joint_states", steps=2).sample(kept, tokens, **given).model_calls == 2
    with pytest.raises(Exception, match=r"guidance 2\.0 needs an unconditional prediction"):
        text_sampler("joint_states", steps=2, guidance=2.0).sample(kept, tokens, **given)
    with pytest.raises(Exception, match="needs a model with a continuous state for each token"):
        text_sampler("joint_states", steps=2).sample(dataclasses.replace(plain, states=None), tokens, **given)
