"""Options of times hold for both times of a model, positions of long texts are exact, the clean condition of the length
head has any type, and heads are computed on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from every_model import KINDS, outputs
from test_definitions import VALID, build, inputs, time_vector
from torch import Tensor

from mm_ldlm.models.layers import rope_table


def asked(model: Any, t: Tensor, s: Tensor) -> Tensor:
    given = inputs()
    found: Tensor = model(
        given["tokens"], valid_BL=VALID, t_text_B=t, t_state_B=s, states_BLd=given["states"]
    ).states_BLd  # fmt: skip
    return found


@torch.no_grad()
@pytest.mark.parametrize("conditioned", [True, False])
def test_neither_time_of_a_text_and_its_states_is_read_without_time_conditioning(conditioned: bool) -> None:
    model = build("ccdd", time_conditioning=conditioned)
    t, s = inputs()["t"], inputs()["s"]
    plain = asked(model, t, s)
    for found in (asked(model, t / 2, s), asked(model, t, s / 2)):
        assert torch.equal(found, plain) is not conditioned


@torch.no_grad()
@pytest.mark.parametrize("factor", [1000.0, 3.0])
def test_the_factor_of_time_is_that_of_both_times(factor: float) -> None:
    model, seen = build("ccdd", time_factor=factor), dict[str, Tensor]()
    for name in ("time", "state_time"):
        getattr(model, name).register_forward_hook(lambda _, args, out, name=name: seen.__setitem__(name, out))
    t, s = inputs()["t"], inputs()["s"]
    asked(model, t, s)
    torch.testing.assert_close(seen["time"], time_vector(model.time, t, factor), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(seen["state_time"], time_vector(model.state_time, s, factor), rtol=1e-3, atol=1e-3)


def test_the_angles_of_far_positions_are_those_of_float64() -> None:
    position, E, theta = 60_001, 16, 10_000.0
    angle = np.float64(position - 1) * theta ** (-np.arange(0, E, 2, dtype=np.float64) / E)
    found = rope_table(position, E, theta)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[-1].numpy(), [np.cos(angle), np.sin(angle)], atol=1e-6)
    assert found[0].tolist() == [[1.0] * 8, [0.0] * 8]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "name", "source"),
    [("mmdit", "length_latents_Bd", "clean"), ("image_mmdit", "length_images_BP", "clean_image")],
)
def test_a_clean_condition_of_any_type_gives_the_lengths_in_float32(
    kind: str, name: str, source: str, dtype: torch.dtype
) -> None:
    model, given = build(kind), inputs()
    keys = {argument: given[each] for argument, each in KINDS[kind].items()}
    rounded = given[source].to(dtype)
    found, exact = (
        model(given["tokens"], valid_BL=VALID, **keys, **{name: each}).length_logits_BN
        for each in (rounded, rounded.float())
    )
    assert found.dtype == torch.float32
    assert torch.equal(found, exact)
    assert not torch.equal(found, outputs(kind, model)["length_logits_BN"]), "not that of the noised condition"


@torch.no_grad()
@pytest.mark.parametrize("kind", ["image_mmdit", "image_mmdit_continuous"])
@pytest.mark.parametrize("heads", [("text",), ("image",), ("length",), ("text", "length"), ("text", "image")])
def test_the_heads_of_captions_and_images_on_demand_are_the_same_numbers(kind: str, heads: tuple[str, ...]) -> None:
    model, given = build(kind), inputs()
    keys = {argument: given[each] for argument, each in KINDS[kind].items()}
    whole = model(given["tokens"], valid_BL=VALID, **keys)
    some = model(given["tokens"], valid_BL=VALID, heads=heads, **keys)
    for head, field in {"text": "logits", "image": "images_BP", "length": "length_logits_BN"}.items():
        if head in heads:
            torch.testing.assert_close(getattr(some, field), getattr(whole, field), rtol=1e-4, atol=1e-4)
        else:
            assert getattr(some, field) is None


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_previous_estimate_of_any_type_is_read_in_float32(dtype: torch.dtype) -> None:
    model, given = build("mmdit", self_condition=True), inputs()
    keys = {argument: given[each] for argument, each in KINDS["mmdit"].items()}
    rounded = given["previous"].to(dtype)
    found, exact = (
        model(given["tokens"], valid_BL=VALID, self_condition_Bd=each, **keys) for each in (rounded, rounded.float())
    )
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
