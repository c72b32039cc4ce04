"""Tiny models whose zero-initialised parameters are not zero, and batches for them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from mm_ldlm.core.config import parse_kind
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.mmdit import MMDiT
from mm_ldlm.models.registry import MODELS

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # `test_definitions` is imported by name; at the end, because other folders share names
    sys.path.append(HERE)

PAD, MASK, V, D_LATENT = 0, 1, 23, 6
SHAPE = DataShape(
    vocab_size=V, pad_id=PAD, mask_id=MASK, max_length=10, latent_dim=D_LATENT, state_dim=5, image_size=(4, 4, 1)
)  # fmt: skip
TINY: dict[str, Any] = {"dim": 32, "depth": 3, "heads": 4, "latent_tokens": 3}


@pytest.fixture
def shape() -> DataShape:
    """Of the data that `make` builds its models for, and `inputs` its batches."""
    return SHAPE


@pytest.fixture
def make() -> Callable[..., MMDiT]:
    """make(stirred=True, attention=..., **parameters) builds an MMDiT from the parameters of `model`.

    adaLN-Zero starts as the identity, so most tests stir it: they add noise to every parameter.
    """

    def factory(
        *,
        stirred: bool = True,
        attention: Literal["fused", "unfused"] = "fused",
        seed: int = 0,
        token_table: Tensor | None = None,
        **parameters: Any,
    ) -> MMDiT:
        config = parse_kind(MODELS, {"kind": "mmdit", **TINY, **parameters}, at="model")
        generator = torch.Generator().manual_seed(seed)
        model: MMDiT = (
            config.build(SHAPE, generator=generator, token_vectors=token_table)
            if attention == "fused"
            else build_on_meta(lambda: MMDiT(config, SHAPE, attention=attention), generator)
        )
        if stirred:
            stir(model)
        return model.eval()

    return factory


def stir(model: torch.nn.Module, *, std: float = 0.1) -> None:
    """Add noise to every parameter, the same for a parameter of the same name whatever else the model has."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(std * noise)


@pytest.fixture
def inputs() -> Callable[..., dict[str, Any]]:
    def factory(B: int = 4, L: int = 8, *, lengths: tuple[int, ...] | None = None, seed: int = 0) -> dict[str, Any]:
        g = torch.Generator().manual_seed(seed)
        lengths = lengths or tuple(max(1, L - 2 * i) for i in range(B))
        valid = torch.arange(L)[None] < torch.tensor(lengths)[:, None]
        tokens = torch.randint(2, V, (B, L), generator=g).masked_fill(~valid, PAD)
        return {
            "tokens_BL": tokens,
            "valid_BL": valid,
            "t_text_B": torch.rand(B, generator=g),
            "latents_Bd": torch.randn(B, D_LATENT, generator=g),
            "t_latent_B": torch.rand(B, generator=g),
        }

    return factory
