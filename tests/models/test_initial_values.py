"""Initial values: the scale of every table, position, null vector and layer, and the layers that start at zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.families.images.model import Patches
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.embeddings import LatentEncoder, LatentTokens, NullEmbedding, TokenTable
from mm_ldlm.models.layers import Linear
from mm_ldlm.models.registry import MODELS

SHAPE = DataShape(
    vocab_size=300, pad_id=0, mask_id=1, max_length=40, latent_dim=150, state_dim=50, image_size=(16, 16, 2)
)  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {"mmdit": {"direct_views": True, "latent_tokens": 8, "token_vectors": "encoder"}}
ZERO = {"causal": (".out", ".mlp.down", "text_head"), "latent_mlp": (".outer",)}
"""Last parts of the names of layers that start at zero, so that a model starts as the identity, where they differ"""


@pytest.mark.parametrize("kind", MODELS.known)
def test_every_parameter_has_the_initial_scale_of_its_layer(kind: str) -> None:
    keys = {"dim": 64, "depth": 2, **OPTIONS.get(kind, {})}
    config = parse_kind(MODELS, {"kind": kind, **keys}, at="model")
    model = config.build(SHAPE, generator=torch.Generator().manual_seed(0))
    seen = set[str]()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            seen.add(f"{path}.{name}" if path else name)
            found = float(parameter.detach().std())
            zero = path.endswith(ZERO.get(kind, ("modulation", "_head.linear", "length_head.outer")))
            assert bool(parameter.any()) != (zero or name in ("bias", "logits_N")), f"{path}.{name}"
            if not bool(parameter.any()):
                continue
            if bool((parameter == 1).all()):
                assert name.startswith("scale"), path
                continue
            expected = {TokenTable: 0.02, NullEmbedding: 0.02}.get(type(module), 0.0)
            if isinstance(module, Patches):
                expected = 1.0
            elif isinstance(module, LatentTokens):
                views = isinstance(module, LatentEncoder) and name == "view_LDd"
                expected = 0.4 / math.sqrt(150) if views else 0.02
            elif isinstance(module, nn.Linear):
                assert isinstance(module, Linear)
                gain = 2.0 if path == "text_embedding.linear" else 1.0
                expected = gain / math.sqrt(module.in_features)
            assert found == pytest.approx(expected, rel=0.25 if parameter.numel() < 200 else 0.06), f"{path}.{name}"
            assert abs(float(parameter.detach().mean())) < 5 * expected / math.sqrt(parameter.numel()), path
            assert float(parameter.detach().abs().max()) <= 3 * expected * 1.0001, path
    assert seen == {name for name, _ in model.named_parameters()}


def test_features_of_a_text_are_those_of_a_clean_text_without_a_latent() -> None:
    config = parse_kind(MODELS, {"kind": "mmdit", "dim": 16, "depth": 1, "heads": 2}, at="model")
    model, seen = config.build(SHAPE, generator=torch.Generator().manual_seed(0)), list[tuple[Any, ...]]()
    model.conditioning.register_forward_pre_hook(lambda module, given: seen.append(given))
    model.latent_encoder.register_forward_pre_hook(lambda module, given: seen.append(given))
    model.features(torch.full((3, 4), 5))
    (t_text_B, t_latent_B, latents_Bd), (encoded_Bd, _) = seen
    assert t_text_B.tolist() == t_latent_B.tolist() == [0.0] * 3
    for given_Bd in (latents_Bd, encoded_Bd):
        assert torch.equal(given_Bd, model.null_latent.value.expand(3, -1))
