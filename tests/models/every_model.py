"""Every model called on the inputs of `test_definitions`."""

from __future__ import annotations

from typing import Any

from test_definitions import inputs
from torch import Tensor

VALID = inputs()["tokens"] != 0
# kind → the model's arguments beside the tokens, and the inputs that they are
KINDS: dict[str, dict[str, str]] = {
    "dit": {"t_B": "t"}, "latent_dit": {"t_B": "t", "latents_Bd": "latent"},
    "latent_dit_cross": {"t_B": "t", "latents_Bd": "latent"},
    "ccdd": {"t_text_B": "t", "states_BLd": "states", "t_state_B": "s"},
    "mmdit": {"t_text_B": "t", "latents_Bd": "latent", "t_latent_B": "s"},
    "image_mmdit": {"t_text_B": "t", "images_BP": "image", "t_image_B": "s"},
    "image_mmdit_continuous": {"t_text_B": "t", "images_BP": "image", "t_image_B": "s"},
}  # fmt: skip


def outputs(kind: str, model: Any, given: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    given = inputs() if given is None else given
    if kind == "causal":
        return {"logits": model(given["tokens"].clamp(max=22))}
    if kind == "latent_mlp":
        return {"features": model(given["latent"])}
    keys = {name: given[source] for name, source in KINDS[kind].items()}
    found = model(given["tokens"], valid_BL=VALID, **keys)._asdict()
    if kind in ("dit", "mmdit"):
        found["features"] = model.features(given["tokens"], valid_BL=VALID)
    return {name: value for name, value in found.items() if value is not None}
