"""[PAD] and [MASK] beyond the vocabulary: every objective trains with them and writes words alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from test_every_option import KINDS, STEP, batch, generator

from mm_ldlm.core.config import parse_kind
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import UsesTokenCounts
from mm_ldlm.objectives.registry import OBJECTIVES

WORDS, PAD, MASK = 10, 10, 11
SHAPE = DataShape(
    vocab_size=WORDS, pad_id=PAD, mask_id=MASK, max_length=6, latent_dim=4, state_dim=3, image_size=(4, 4, 1)
)  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in KINDS if "classification" not in kind),
    *(("text_diffusion", {"process": {"kind": kind}}) for kind in ("d3pm", "uniform", "gidd", "hdlm", "sedd")),
    ("text_diffusion", {"process": {"kind": "sedd", "graph": "uniform"}}),
]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_special_ids_may_lie_beyond_the_vocabulary(kind: str, options: dict[str, Any]) -> None:
    config = parse_kind(OBJECTIVES, {"kind": kind, **options}, at="objective")
    stores = {name: torch.arange(WORDS)[:, None] % 3 for name in config.stores}
    shape = dataclasses.replace(SHAPE, noise_ids=config.noise_ids(SHAPE, **stores))
    name, keys = KINDS[kind]
    keys = {"dim": 16, "depth": 1, **keys} | ({"self_condition": False} if name == "mmdit" else {})
    model = parse_kind(MODELS, {"kind": name, **keys}, at="model").build(
        shape, generator=torch.Generator().manual_seed(0)
    )
    made = config.build(shape, **stores)
    if isinstance(made, UsesTokenCounts):
        made.set_token_counts(lambda: torch.arange(12))
    data = batch()
    tokens_BL = torch.where(data.valid_BL, data.tokens_BL - 2, PAD)
    data = dataclasses.replace(data, tokens_BL=tokens_BL)
    assert (int(tokens_BL[data.valid_BL].min()), int(tokens_BL[data.valid_BL].max())) == (0, WORDS - 1)
    for mode in made.kinds:
        losses = made(model, data, generator(), kind=mode, step=STEP)
        assert all(bool(torch.isfinite(total)) for total, _ in losses.values()), mode
        if "text_nll" in losses and "text_nll" in made.expected_first_loss():
            total, count = losses["text_nll"]
            ends = kind == "autoregressive"  # with a column of its own, which cannot be the first token
            assert made.expected_first_loss()["text_nll"] == pytest.approx(math.log(WORDS + ends))
            assert float(total.detach() / count) == pytest.approx(math.log(WORDS + ends), rel=0.03 if ends else 1e-5)
    generation = made.generative_model(model)
    canvas_BL = torch.where(data.valid_BL, MASK, PAD)[:8] if generation.has_length else torch.full((8, 6), MASK)
    with generation.evaluating():
        sample = generation.write(
            canvas_BL, canvas_BL == MASK, latents_Bd=None, sampler=generation.default_sampler(conditional=False),
            generator=generator(8),
        )  # fmt: skip
    written_BL = sample.tokens != PAD
    assert bool((sample.tokens[written_BL] < WORDS).all())
    if generation.has_length:
        assert torch.equal(written_BL, canvas_BL == MASK)
