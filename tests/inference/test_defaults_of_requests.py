"""Requests without options: the sampler and the length that each takes then, and the name under which it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from mm_ldlm.inference.engine import Engine
from scripted import MASK, Scripted, engine

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import editing, embedding, inverting, memory, scoring
from mm_ldlm.sampling.registry import latent_sampler, text_sampler

RAW = np.array([[3.0, 1.0], [5.0, 2.0]], np.float32)
GIVEN, FREE = (Scripted().default_sampler(conditional=conditional) for conditional in (True, False))
HOW: dict[str, Any] = {"sampler": None, "steps": None, "seed": 7}
MORE: dict[str, Any] = {"search": None, "reembed": False}

WRITTEN: dict[str, tuple[Any, Any]] = {
    "invert": (GIVEN, lambda m, how: inverting.invert(m, RAW, length="argmax", **MORE, **how)),
    "infill": (GIVEN, lambda m, how: editing.infill(m, ["w1 [MASK]"], latents=None, mask="[MASK]", **how)),
    "infill given latents": (
        GIVEN, lambda m, how: editing.infill(m, ["w1 [MASK]", "[MASK]"], latents=RAW, mask="[MASK]", **how)
    ),
    "edit": (
        GIVEN, lambda m, how: editing.edit(m, ["w1", "w2"], targets=RAW, strength=0.5, which="random", reembed=False,
                                           **how)
    ),
    "generate": (
        FREE, lambda m, how: inverting.generate(m, 2, order="text_first", latent_sampler="ddim", length=3, **how)
    ),
    "generate latents first": (
        FREE, lambda m, how: inverting.generate(m, 2, order="latent_first", latent_sampler="ddim", length=3, **how)
    ),
}  # fmt: skip


def samplers(made: Engine) -> list[Any]:
    return [asked[2] for asked in made.model.asked if len(asked) == 4 and torch.is_tensor(asked[0])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("request_of", WRITTEN)
def test_a_text_is_written_with_the_default_of_what_it_is_written_from(request_of: str) -> None:
    """Given a latent or a context, a text has one right answer; from noise it is drawn."""
    default, ask = WRITTEN[request_of]
    for given, expected in (
        ({}, default),
        ({"steps": 6}, default.override(steps=6)),
        ({"sampler": "margin"}, text_sampler("margin", steps=default.steps, temperature=default.temperature)),
        ({"sampler": {"kind": "margin", "steps": 2}}, text_sampler("margin", steps=2)),
        ({"sampler": {"kind": "margin", "steps": 2}, "steps": 6}, text_sampler("margin", steps=6)),
    ):
        made = engine(batch_tokens=100)
        ask(made, {**HOW, **given})
        assert samplers(made) == [expected], given


def test_a_path_is_written_with_the_default_of_an_inversion() -> None:
    made = engine(batch_tokens=100)
    inverting.interpolate(
        made, RAW[:1], RAW[1:], steps=2, path="lerp", sampler=None, length="argmax", reembed=False, seed=0
    )
    assert samplers(made) == [GIVEN]
    assert (made.model.asked[-1][0] == MASK).sum(1).tolist() == [4, 2], "the most probable lengths"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, latent_sampler("ddim")), ({"sampler": "ddpm"}, latent_sampler("ddpm")),
        ({"steps": 6}, latent_sampler("ddim", steps=6)), ({"draws": 3}, latent_sampler("ddim", draws=3)),
        ({"sampler": {"kind": "heun", "steps": 5, "draws": 2}, "steps": 6, "draws": 3},
         latent_sampler("heun", steps=6, draws=3)),
    ],
)  # fmt: skip
def test_a_latent_is_drawn_with_the_settings_that_are_given(given: Any, expected: Any) -> None:
    made = engine(batch_tokens=100)
    found = embedding.embed(made, [[1, 2], [22]], ["a", "b"], **{**HOW, "draws": None, **given})
    ((_, sampler, generator),) = made.model.asked  # type: ignore[attr-defined]
    assert (sampler, generator.seed) == (expected, 7)
    assert found.draws.shape == (expected.draws, 2, 2)
    assert found.unknown is not None
    assert found.unknown.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("what", "ask"),
    [
        *((name.split()[0], ask) for name, (_, ask) in WRITTEN.items() if name.startswith(("invert", "generate"))),
        ("embed", lambda m, how: embedding.embed(m, [[1]], ["a"], draws=None, **how)),
        ("interpolate", lambda m, how: inverting.interpolate(
            m, RAW, RAW, steps=3, path="lerp", sampler=None, length=3, reembed=False, seed=0)),
        ("score with 1,234 draws", lambda m, how: scoring.score(
            m, [[1]], ["a"], latents=None, draws=1234, seed=0)),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_the_memory_is_named(what: str, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 5.0)
    made = engine(batch_tokens=100)
    with pytest.raises(SamplingError, match=rf"^{what}: [\d,]+ (texts of up to \d tokens|numbers): expected a request"):
        ask(made, HOW)
    assert made.model.asked == [], "nothing was computed"  # type: ignore[attr-defined]
