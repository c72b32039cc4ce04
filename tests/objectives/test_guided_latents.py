"""Latents and images given texts can be guided where the null text is learned: both predictions differ in the null text
alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_image_text import P, objective

from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.multimodal import MultimodalConfig
from mm_ldlm.objectives.multimodal_generation import MultimodalGeneration


@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_the_unconditional_prediction_drops_the_text(dropout: float) -> None:
    asked: list[dict[str, Any]] = []

    def model(tokens: Any, **named: Any) -> Any:
        asked.append(named)
        return SimpleNamespace(latent_Bd=named["latents_Bd"])

    shape = DataShape(vocab_size=9, pad_id=0, mask_id=1, max_length=4, latent_dim=3)
    generation = MultimodalGeneration(model, shape, MultimodalConfig(condition_dropout=dropout))  # type: ignore[arg-type]
    sampler = SimpleNamespace(sample=lambda denoiser, *, dim, generator: (denoiser, dim))
    found, dim = generation.latents_given_texts(  # type: ignore[misc]
        torch.full((2, 4), 5), sampler=sampler, generator=None  # type: ignore[arg-type]
    )  # fmt: skip
    assert dim == 3
    assert (found.unconditional is not None) == (dropout > 0)
    found.predict(torch.ones(2, 3), torch.full((2,), 0.25), None)
    assert asked[0]["null_text_B"] is None
    assert asked[0]["t_text_B"].tolist() == [0.0, 0.0], "the text is clean"
    if found.unconditional is not None:
        found.unconditional(torch.ones(2, 3), torch.full((2,), 0.25), None)
        assert asked[1]["null_text_B"].all()
        assert asked[1]["t_latent_B"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("kind", ["image_text", "image_text_continuous"])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_the_unconditional_prediction_of_an_image_drops_the_caption(kind: str, dropout: float) -> None:
    asked: list[dict[str, Any]] = []

    def model(tokens: Any, **named: Any) -> Any:
        asked.append(named)
        return SimpleNamespace(images_BP=named["images_BP"])

    model.config = SimpleNamespace(vector_dim=5)  # type: ignore[attr-defined]
    generation = objective(kind, condition_dropout=dropout).generative_model(model)
    sampler = SimpleNamespace(sample=lambda denoiser, *, dim, generator: (denoiser, dim))
    found, dim = generation.latents_given_texts(torch.full((2, 4), 5), sampler=sampler, generator=None)
    assert dim == P
    sides = [(found.predict, None)]
    assert (found.unconditional is not None) == (dropout > 0)
    if dropout:
        sides.append((found.unconditional, [True, True]))
    for predict, null in sides:
        predict(torch.ones(2, P), torch.full((2,), 0.25), None)
        given = asked[-1]
        assert (given["null_text_B"] if null is None else given["null_text_B"].tolist()) == null
        assert (given["t_text_B"].tolist(), given["t_image_B"].tolist()) == ([0.0, 0.0], [0.25, 0.25])
