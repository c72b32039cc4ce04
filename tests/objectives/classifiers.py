"""Small classifiers of every kind and batches for them.

Several folders have a `test_classification`, so that a test can import none of them by name.
"""

from __future__ import annotations

from typing import Any

import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.models.freezing import freeze
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import Batch
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.root import TrainableRoot

SHAPE = DataShape(vocab_size=12, pad_id=0, mask_id=1, max_length=6, latent_dim=5)
NAMES = ("animal", "tool", "ärger")
TEXT_MODELS = {
    "dit": {"kind": "dit", "dim": 8, "depth": 2, "heads": 2},
    "mmdit": {"kind": "mmdit", "dim": 8, "depth": 2, "heads": 2, "latent_tokens": 2},
}


def names(*labels: str) -> torch.Tensor:
    width = max(len(label.encode()) for label in labels)
    return torch.tensor([list(label.encode().ljust(width, b"\0")) for label in labels], dtype=torch.uint8)


def root_of(model: dict[str, Any], *labels: str, trained: bool = False, **objective: Any) -> TrainableRoot:
    generator = torch.Generator().manual_seed(0)
    model_config = parse_kind(MODELS, model, at="model")
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    config.capabilities(model_config)
    built = model_config.build(SHAPE, generator=generator)
    made = config.build(SHAPE, label_names=names(*labels))
    made.attach(built)
    init_weights(made, generator)
    root = TrainableRoot(built, made)
    freeze(root, made.frozen_parts(trained=trained), trained=trained)
    return root


def batch(count: int = 12, *, classes: int = 3, filling: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 7, (count,), generator=draw)
    valid = torch.arange(6) < lengths[:, None]
    examples = torch.arange(count)
    examples[count - filling :] = -1

    def tokens() -> torch.Tensor:
        return torch.where(valid, torch.randint(2, 12, (count, 6), generator=draw), 0)

    return Batch(
        tokens_BL=tokens(),
        valid_BL=valid,
        fields={
            "labels": torch.randint(0, classes, (count, 1), generator=draw),
            "latents": torch.randn(count, 5, generator=draw),
            "pair_tokens": tokens().int(),
        },
        examples_B=examples, position_B=torch.arange(count), global_size=count, global_tokens=int(valid.sum()),
    )  # fmt: skip


def losses(root: TrainableRoot, data: Batch) -> dict[str, Any]:
    found: dict[str, Any] = root(data, RowGenerator(0, data.position_B), "classes", 0)
    return found


CASES = {
    "latents": ({"kind": "latent_mlp", "dim": 8, "depth": 1}, {"features": "latents"}),
    "linear": ({"kind": "latent_mlp", "depth": 0}, {"features": "latents"}),
    "dit": (TEXT_MODELS["dit"], {"features": "trunk"}),
    "mmdit": (TEXT_MODELS["mmdit"], {"features": "trunk", "with_latents": True}),
    "pairs": (TEXT_MODELS["dit"], {"kind": "pairwise_classification", "hidden_dim": 8}),
}


def labels_of(case: str) -> tuple[str, ...]:
    return ("first", "second", "similar") if case == "pairs" else NAMES
