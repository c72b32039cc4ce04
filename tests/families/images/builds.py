"""Small models and objectives of images, and six pairs of caption and image to learn."""

from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES, Batch

SHAPE = DataShape(vocab_size=8, pad_id=0, mask_id=1, max_length=4, fields={"images": (4, 4, 1)})
MODEL = {"image_text": "image_mmdit", "image_text_continuous": "image_mmdit_continuous"}
KINDS = tuple(MODEL)
B, P = 12, 16


def objective(kind: str = "image_text", **keys: Any) -> Any:
    return parse_kind(OBJECTIVES, {"kind": kind, **keys}, at="objective").build(SHAPE)


def model(kind: str = "image_mmdit", shape: DataShape = SHAPE, *, spread: float = 0.0, **keys: Any) -> Any:
    """A model at its initial values, to which `spread` adds noise: adaLN-Zero starts with gates of 0."""
    config = parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 2, "heads": 2, "patch": 2, **keys}, at="model")
    made = config.build(shape, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(spread * torch.randn(parameter.shape, generator=draw))
    return made


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Which of six images each example has, the images, and the captions, whose second token names the image."""
    which_B = torch.arange(B) % 6
    images_BP = 2 * torch.randn(6, P, generator=torch.Generator().manual_seed(3))[which_B]
    tokens_BL = torch.stack([torch.full((B,), 7), 2 + which_B, torch.full((B,), 7), torch.zeros(B).long()], dim=1)
    tokens_BL[::2, 3] = 7
    return which_B, images_BP, tokens_BL


def batch() -> Batch:
    _, images_BP, tokens_BL = pairs()
    every_B, valid_BL = torch.arange(B), tokens_BL != 0
    return Batch(tokens_BL, valid_BL, {"images": images_BP}, every_B, every_B, B, int(valid_BL.sum()))


def generator(seed: int = 0) -> RowGenerator:
    return RowGenerator(seed, torch.arange(B))
