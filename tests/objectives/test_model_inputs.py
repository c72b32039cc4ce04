"""What the losses show to the model: the estimate of a first pass, states, and the positions that they ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from test_every_option import ABSORBING, KINDS, STEP, B, batch, built, generator
from torch import Tensor

from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.training_times import shared_draw


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def first_step(estimates: bool) -> int:
    """A step of those that estimate the latent first, or of the others."""
    return next(
        step for step in range(99)
        if (shared_draw(RowGenerator(step, torch.arange(B)), "self_condition") < 0.5) == estimates
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["t2l", "unconditional"])
@pytest.mark.parametrize("parameterisation", ["v", "eps", "x0"])
def test_the_second_pass_reads_the_clean_latent_that_the_first_one_estimated(kind: str, parameterisation: str) -> None:
    config, made, model = built("multimodal", {"self_condition": True, "parameterisation": parameterisation})
    for estimates in (True, False):
        calls: list[tuple[dict[str, Any], Any]] = []

        def spy(tokens: Tensor, *, seen: list[Any] = calls, **keys: Any) -> Any:
            out = model(tokens, **keys)
            seen.append(({"tokens": tokens, **keys}, out))
            return out

        step = first_step(estimates)
        made(spy, batch(), RowGenerator(step, torch.arange(B)), kind=kind, step=step)
        assert len(calls) == 1 + estimates
        last = calls[-1][0]
        if not estimates:
            assert not last["self_condition_Bd"].any()
            continue
        first, out = calls[0]
        assert first["heads"] == ("latent",)
        assert not first["self_condition_Bd"].any()
        for name in ("tokens", "latents_Bd", "t_text_B", "t_latent_B"):
            assert torch.equal(first[name], last[name])
        t_B, x_t_Bd = first["t_latent_B"], first["latents_Bd"]
        signal_B, scale_B = config.latent_schedule.signal(t_B), config.latent_schedule.noise(t_B)
        expected = gaussian.to_x0(
            out.latent_Bd, parameterisation, x_t_Bd=x_t_Bd, signal_B=signal_B, noise_scale_B=scale_B
        )  # fmt: skip
        torch.testing.assert_close(last["self_condition_Bd"], expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "classification" not in kind])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_compiled_step_asks_for_the_logits_of_every_position(kind: str, fixed: bool) -> None:
    _, made, model = built(kind, {}, fixed_shapes=fixed)
    asked: list[Any] = []

    def spy(tokens: Tensor, **keys: Any) -> Any:
        asked.append(keys.get("logits_at"))
        return model(tokens, **keys)

    spy.config = model.config  # type: ignore[attr-defined]
    for mode in made.kinds:
        asked.clear()
        made(spy, batch(), generator(), kind=mode, step=STEP)
        assert (asked[-1] is None) == (fixed or mode in ("t2l", "caption_to_image"))


def test_states_belong_to_the_first_tokens_of_a_longer_batch() -> None:
    """The states of a batch are as long as its longest text, the tokens of a fixed shape may be longer."""
    _, made, model = built("ccdd", ABSORBING)
    data = batch()
    valid_BL = data.valid_BL & (torch.arange(6) < 4)
    data = dataclasses.replace(data, tokens_BL=data.tokens_BL.masked_fill(~valid_BL, 0), valid_BL=valid_BL)
    states = data.fields["token_states"] * valid_BL[..., None]
    found = [
        made(model, dataclasses.replace(data, fields={"token_states": each}), generator(), kind="text", step=STEP)
        for each in (states, states[:, :4])
    ]
    assert found[0] == found[1]


def test_one_mode_needs_no_weight() -> None:
    weights = {"l2t": 0.0, "t2l": 0.0, "unconditional": 1.0}
    for mode in ("l2t", "t2l", "unconditional"):
        _, made, _ = built("multimodal", {"mode": mode, "loss_type_weights": weights})
        assert made.kinds == (mode,)
        assert made.kind(generator(), step=0) == mode
