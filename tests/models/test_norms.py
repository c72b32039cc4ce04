"""The norms of all models have one epsilon, which decides what small numbers become."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_model import KINDS, VALID, outputs
from test_definitions import SHAPE, build, inputs, normed, rms, stirred
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator, LayerNorm
from mm_ldlm.models.heads import mean_features
from mm_ldlm.models.layers import EPSILON, QKNorm, modulate, prepare_qkv, prepare_qkv_plainly

OPTIONS: dict[str, dict[str, Any]] = {"mmdit": {"direct_views": True}}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Epsilon of every norm that is computed."""
    found: list[float | None] = []

    def recording(name: str) -> Callable[..., Tensor]:
        plain = getattr(F, name)
        signature = inspect.signature(plain)

        def norm(*args: Any, **keys: Any) -> Tensor:
            bound = signature.bind(*args, **keys)
            bound.apply_defaults()
            found.append(bound.arguments["eps"])
            result: Tensor = plain(*args, **keys)
            return result

        return norm

    for name in ("layer_norm", "rms_norm"):
        monkeypatch.setattr(F, name, recording(name))
    return found


@torch.no_grad()
@pytest.mark.parametrize("kind", [*KINDS, "causal", "latent_mlp"])
def test_every_norm_of_a_model_has_the_same_epsilon(kind: str, seen: list[float | None]) -> None:
    outputs(kind, build(kind, **OPTIONS.get(kind, {})))
    assert set(seen) == {EPSILON}


@torch.no_grad()
def test_every_norm_of_the_estimator_has_the_same_epsilon(seen: list[float | None]) -> None:
    module = stirred(ImportanceEstimator(ImportanceConfig(dim=16, depth=1, heads=2), SHAPE))
    for parameter in module.parameters():
        parameter.data.zero_()
    module(inputs()["tokens"].clamp(max=22), VALID)
    assert seen == [EPSILON] * 3


SMALL = 1e-3 * torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
"""Whose variance is as large as epsilon"""


def own(x: Tensor) -> Tensor:
    module = LayerNorm(8)
    torch.nn.init.ones_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return module(x)  # type: ignore[no-any-return]


NORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "modulate": (lambda x: modulate(x, torch.zeros(2, 8), torch.zeros(2, 8)), normed),
    "features": (lambda x: mean_features(x, None), lambda x: normed(x).mean(1)),
    "estimator": (own, normed),
}


@torch.no_grad()
@pytest.mark.parametrize("name", NORMS)
def test_small_numbers_are_divided_by_their_deviation_with_epsilon(name: str) -> None:
    found, expected = NORMS[name]
    torch.testing.assert_close(found(SMALL), expected(SMALL), rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("way", [prepare_qkv, prepare_qkv_plainly])
def test_small_queries_and_keys_are_divided_by_their_root_mean_square_with_epsilon(way: Any) -> None:
    norm = QKNorm(2, 8)
    norm.scale.data = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(1))
    qkv = 1e-3 * torch.randn(3, 5, 3, 2, 8, generator=torch.Generator().manual_seed(2))
    found = way([qkv], [norm], (None,))
    torch.testing.assert_close(found[:, :, :2], rms(qkv[:, :, :2]) * norm.scale, rtol=1e-4, atol=1e-6)
    assert torch.equal(found[:, :, 2], qkv[:, :, 2])
    q, k = norm.each(qkv[:, :, 0], qkv[:, :3, 1])
    torch.testing.assert_close(q, rms(qkv[:, :, 0]) * norm.scale[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(k, rms(qkv[:, :3, 1]) * norm.scale[1], rtol=1e-4, atol=1e-6)
