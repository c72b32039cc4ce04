"""The losses of a step do not depend on the length to which its batch is padded, and start where the objective says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from test_every_option import KINDS, SHAPE, STEP, STORES, batch, built, generator, numbers
from torch.nn import functional as F

from mm_ldlm.core.config import parse_kind
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch, BuildsOnModel, UsesTokenCounts
from mm_ldlm.objectives.registry import OBJECTIVES

SHORT = 4
CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in KINDS if kind != "classification"), ("classification", {"features": "trunk"}),
    ("adaptive_masking", {"noised_inputs": 1.0, "policy": "inverse"}), ("ccdd", {"timesteps": "separate"}),
    ("multimodal", {"self_condition": True, "cycle": {"text_weight": 1.0, "latent_weight": 1.0}}),
    *(("text_diffusion", {"process": {"kind": kind}}) for kind in ("d3pm", "sedd", "uniform", "gidd", "hdlm")),
]  # fmt: skip


def padded(columns: int) -> Batch:
    """Texts of at most four tokens, with so many columns of padding after them."""
    data = batch()
    tokens_BL, valid_BL = data.tokens_BL[:, :SHORT], data.valid_BL[:, :SHORT]
    fields = {**data.fields, "token_states": data.fields["token_states"][:, :SHORT]}
    return dataclasses.replace(
        data, tokens_BL=F.pad(tokens_BL, (0, columns)), valid_BL=F.pad(valid_BL, (0, columns)), fields=fields,
        global_tokens=int(valid_BL.sum()),
    )  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("fixed_shapes", [False, True])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_columns_of_padding_change_no_number(kind: str, options: dict[str, Any], fixed_shapes: bool) -> None:
    fixed = fixed_shapes and "classification" not in kind  # which refuses them
    _, made, model = built(kind, options, fixed_shapes=fixed)
    for mode in made.kinds:
        short, long = (
            numbers(made(model, padded(columns), generator(), kind=mode, step=STEP)) for columns in (0, 2)
        )  # fmt: skip
        assert set(short) == set(long)
        for name, found in long.items():
            assert found == pytest.approx(short[name], rel=1e-4, abs=1e-5), f"{mode}:{name}"


FIRST = {"classification": "class_loss", "pairwise_classification": "class_loss"}
"""kind → the loss that it announces, where it is not that of the tokens"""


STARTS: list[tuple[str, dict[str, Any], str]] = [
    *((kind, {}, FIRST.get(kind, "text_nll")) for kind in KINDS),
    *((kind, {"process": {"kind": "gidd"}}, "text_nll") for kind in ("text_diffusion", "latent_conditioned", "ccdd")),
    *((kind, {"process": {"kind": "hdlm"}}, "") for kind in ("text_diffusion", "latent_conditioned", "ccdd")),
]  # fmt: skip
"""HDLM announces none: a cluster leaves fewer words than a mask"""


@torch.no_grad()
@pytest.mark.parametrize(("kind", "chosen", "announces"), STARTS, ids=str)
def test_the_first_loss_is_announced_by_every_objective_and_is_that_of_the_untrained_model(
    kind: str, chosen: dict[str, Any], announces: str
) -> None:
    config = parse_kind(OBJECTIVES, {"kind": kind, **chosen}, at="objective")
    made = config.build(SHAPE, **{name: STORES[name] for name in config.stores})
    name, keys = KINDS[kind]
    model = parse_kind(MODELS, {"kind": name, "dim": 16, "depth": 1, **keys}, at="model").build(
        SHAPE, generator=torch.Generator().manual_seed(0)
    )
    if isinstance(made, BuildsOnModel):
        made.attach(model)
        for parameter in made.parameters():  # type: ignore[attr-defined]
            parameter.zero_()
    if isinstance(made, UsesTokenCounts):
        made.set_token_counts(lambda: torch.arange(12))
    announced = made.expected_first_loss()
    assert set(announced) == set(announces.split())
    for mode in made.kinds:
        found = numbers(made(model, batch(), generator(), kind=mode, step=0))
        for loss, value in announced.items():
            if loss in found:
                exact = 1e-2 if kind == "autoregressive" else 1e-4  # a text does not end before its first token
                assert found[loss][0] / found[loss][1] == pytest.approx(value, rel=exact), mode
