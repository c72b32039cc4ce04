"""Random numbers of a training step: no two draws share them, so that times, noise and dropped conditions are
independent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_every_option import ABSORBING, KINDS, STEP, batch, built, generator

from mm_ldlm.diffusion.random import RowGenerator

CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in KINDS if "classification" not in kind and kind != "autoregressive"),
    ("multimodal", {**ABSORBING, "self_condition": True, "cycle": {"text_weight": 1.0, "latent_weight": 1.0}}),
    ("multimodal", {"process": {"kind": "uniform"}, "cycle": {"text_weight": 1.0, "latent_weight": 1.0}}),
    *(("text_diffusion", {"process": {"kind": kind}}) for kind in ("d3pm", "uniform", "gidd", "hdlm", "sedd")),
    ("text_diffusion", {"process": {"kind": "sedd", "graph": "uniform"}}), ("ccdd", {"timesteps": "separate"}),
    ("image_text", {"process": {"kind": "gidd"}}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_no_random_number_is_drawn_twice_in_a_step(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, plain = list[int](), RowGenerator._next_key
    monkeypatch.setattr(RowGenerator, "_next_key", lambda self: keys.append(plain(self)) or keys[-1])
    _, made, model = built(kind, options)
    for mode in made.kinds:
        keys.clear()
        draws = generator()
        made.kind(draws, step=STEP)
        with torch.no_grad():
            made(model, batch(), draws, kind=mode, step=STEP)
        assert keys
        assert len(set(keys)) == len(keys), mode
