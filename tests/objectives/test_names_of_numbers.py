"""Which losses and statistics a step reports, by the kind of the step: none is lost, and none is added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_every_option import KINDS, STEP, batch, built, generator

QUARTERS = [f"_t{i}" for i in range(4)]


def by_time(name: str) -> set[str]:
    return {f"{name}{quarter}" for quarter in QUARTERS}


TOKENS = {"text_loss", "text_nll", "text_accuracy"}
VECTORS = TOKENS | by_time("text_nll")
TEXT = VECTORS | {"masking_rate"}
LENGTH = {"length_loss", "length_accuracy"}
LATENT = {"latent_loss", "latent_cosine", "noise_level"} | by_time("latent_error")
IMAGE = {"image_loss", "image_cosine", "noise_level"} | by_time("image_error")
STATE = {"state_loss", "state_error"} | by_time("state_error")
ADAPTIVE = {
    "importance_mean", "importance_std", "importance_min", "importance_max", "noise_level", "curriculum_stage"
}  # fmt: skip
CLASSES = {"class_loss", "class_nll", "accuracy"}
Z = {"z_loss"}
MULTIMODAL = {"l2t": TEXT | LENGTH, "t2l": LATENT | LENGTH, "unconditional": TEXT | LATENT | LENGTH}
# kind of objective, its options, and what it reports in each kind of step
CASES: list[tuple[str, dict[str, Any], dict[str, set[str]]]] = [
    ("text_diffusion", {}, {"text": TEXT | LENGTH}), ("text_diffusion", {"length_weight": 0.0}, {"text": TEXT}),
    ("text_diffusion", {"z_loss": 0.1}, {"text": TEXT | LENGTH | Z}),
    *(("text_diffusion", {"process": {"kind": kind}}, {"text": TEXT | LENGTH})
      for kind in ("d3pm", "sedd", "uniform", "gidd", "hdlm")),
    ("latent_conditioned", {}, {"text": TEXT | LENGTH}),
    ("adaptive_masking", {}, {"text": TEXT | LENGTH | ADAPTIVE | {"importance_loss"}}),
    ("adaptive_masking", {"importance": "none", "z_loss": 0.1}, {"text": TEXT | LENGTH | ADAPTIVE | Z}),
    ("adaptive_masking", {"importance": "frequency_only", "length_weight": 0.0}, {"text": TEXT | ADAPTIVE}),
    ("autoregressive", {}, {"text": TOKENS}), ("autoregressive", {"z_loss": 0.1}, {"text": TOKENS | Z}),
    ("ccdd", {}, {"text": TEXT | STATE | LENGTH}),
    ("ccdd", {"z_loss": 0.1, "length_weight": 0.0}, {"text": TEXT | STATE | Z}),
    ("classification", {}, {"classes": CLASSES}), ("pairwise_classification", {}, {"classes": CLASSES}),
    ("multimodal", {}, MULTIMODAL),
    ("multimodal", {"z_loss": 0.1}, {**{name: found | Z for name, found in MULTIMODAL.items()},
                                     "t2l": MULTIMODAL["t2l"]}),
    ("multimodal", {"mode": "sequential"}, {**MULTIMODAL, "t2l": LATENT}),
    ("multimodal", {"mode": "t2l"}, {"t2l": LATENT}), ("multimodal", {"mode": "l2t"}, {"l2t": TEXT | LENGTH}),
    ("multimodal", {"length_weight": 0.0}, {name: found - LENGTH for name, found in MULTIMODAL.items()}),
    ("multimodal", {"cycle": {"text_weight": 1.0, "latent_weight": 1.0}}, {
        "l2t": MULTIMODAL["l2t"] | {"cycle_text_loss", "cycle_text"},
        "t2l": MULTIMODAL["t2l"] | {"cycle_latent_loss", "cycle_latent"}, "unconditional": MULTIMODAL["unconditional"],
    }),
    *((kind, {}, {"caption_to_image": IMAGE, "image_to_caption": text | LENGTH, "joint": text | IMAGE | LENGTH})
      for kind, text in (("image_text", TEXT), ("image_text_continuous", VECTORS))),
]  # fmt: skip


def test_no_kind_is_left_out() -> None:
    assert {kind for kind, _, _ in CASES} == set(KINDS)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "options", "expected"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_step_reports_its_losses_and_statistics(
    kind: str, options: dict[str, Any], expected: dict[str, set[str]]
) -> None:
    _, made, model = built(kind, options)
    found = {mode: set(made(model, batch(), generator(), kind=mode, step=STEP)) for mode in made.kinds}
    assert found == expected
