"""Masks of padding: none where there is no padding, but one of the same shape in a compiled graph and on other
devices, where the check would wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_definitions import build, inputs
from torch import Tensor

from mm_ldlm.models.dit import DiTConfig
from mm_ldlm.models.layers import prepare_qkv
from mm_ldlm.models.two_streams import drop_text, joint_key_mask

L, K = 6, 3
WHOLE = torch.ones(2, L, dtype=torch.bool)
PADDED = torch.arange(L) < torch.tensor([[L], [2]])


def text_mask(valid: Tensor | None) -> Tensor | None:
    model: Any = build("dit")
    assert isinstance(model.config, DiTConfig)
    found: Tensor | None = model._key_mask(valid)
    return found


MASKS: dict[str, tuple[Callable[[Tensor | None], Tensor | None], int]] = {
    "text": (text_mask, 0), "two streams": (lambda valid: joint_key_mask(valid, others=K), K)
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKS)
def test_the_mask_has_the_padding_and_none_of_the_other_stream(kind: str) -> None:
    mask, others = MASKS[kind]
    assert mask(None) is None
    assert mask(WHOLE) is None
    found = mask(PADDED)
    assert found is not None
    assert found.shape == (2, 1, 1, L + others)
    expected = torch.cat([PADDED, torch.ones(2, others, dtype=torch.bool)], dim=1)
    assert torch.equal(found[:, 0, 0], expected)


@pytest.mark.parametrize("kind", MASKS)
def test_a_compiled_graph_and_another_device_have_a_mask_without_padding_too(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask, others = MASKS[kind]
    found = mask(WHOLE.to("meta"))
    assert found is not None
    assert found.shape == (2, 1, 1, L + others)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = mask(WHOLE)
    assert found is not None
    assert bool(found.all())


def test_a_text_of_padding_alone_reads_its_first_position() -> None:
    found = text_mask(torch.tensor([[False] * 3, [True, True, False]]))
    assert found is not None
    assert found[:, 0, 0].tolist() == [[True, False, False], [True, True, False]]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dit", "mmdit", "image_mmdit"])
def test_a_compiled_graph_computes_by_plain_operations_the_same_numbers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = build(kind), inputs()
    keys: dict[str, Any] = {
        "dit": {"t_B": given["t"]},
        "mmdit": {"t_text_B": given["t"], "t_latent_B": given["s"], "latents_Bd": given["latent"]},
        "image_mmdit": {"t_text_B": given["t"], "t_image_B": given["s"], "images_BP": given["image"]},
    }[kind]
    tokens = given["tokens"]
    for valid in (tokens != 0, torch.ones_like(tokens, dtype=torch.bool), None):
        eager = model(tokens, valid_BL=valid, **keys)
        with monkeypatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            compiled = model(tokens, valid_BL=valid, **keys)
        for one, other in zip(eager, compiled, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_compiled_graph_has_no_function_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = build("dit").blocks[0].streams[0].qk_norm
    qkv = torch.randn(2, 4, 3, 2, 8, requires_grad=True)
    assert type(prepare_qkv([qkv], [norm], (None,)).grad_fn).__name__ == "PrepareQKVBackward"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert type(prepare_qkv([qkv], [norm], (None,)).grad_fn).__name__ != "PrepareQKVBackward"


@pytest.mark.parametrize("valid", [None, PADDED])
def test_a_dropped_text_is_one_null_token_and_the_others_stay(valid: Tensor | None) -> None:
    text = torch.randn(2, L, 4)
    null = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for dropped in ([True, False], [False, True], [True, True], [False, False]):
        found, valid_BL = drop_text(text, valid, torch.tensor(dropped), null_text=null)
        for row, drops in enumerate(dropped):
            assert torch.equal(found[row], null.expand(L, -1) if drops else text[row])
            plain = [True] * L if valid is None else valid[row].tolist()
            assert valid_BL[row].tolist() == ([True] + [False] * (L - 1) if drops else plain)
