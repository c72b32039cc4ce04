"""Small classifiers of every kind, and batches for them."""

from typing import Any

import torch

from mm_ldlm.core import parse_kind
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import MODELS, DataShape, init_weights
from mm_ldlm.models.parts import freeze
from mm_ldlm.objectives.base import OBJECTIVES, Batch
from mm_ldlm.objectives.root import TrainableRoot

SHAPE = DataShape(vocab_size=12, pad_id=0, mask_id=1, max_length=6, fields={"latents": (5,)})
NAMES = ("animal", "tool", "ärger")
ANSWERS = ("first", "second", "similar")
DIT = {"kind": "dit", "dim": 8, "depth": 2, "heads": 2}
MMDIT = {"kind": "mmdit", "dim": 8, "depth": 2, "heads": 2, "latent_tokens": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "latents": ({"kind": "latent_mlp", "dim": 8, "depth": 1}, {"features": "latents"}),
    "linear": ({"kind": "latent_mlp", "depth": 0}, {"features": "latents"}),
    "dit": (DIT, {"features": "trunk"}),
    "mmdit": (MMDIT, {"features": "trunk", "with_latents": True}),
    "pairs": (DIT, {"kind": "pairwise_classification", "hidden_dim": 8}),
}


def names(*labels: str) -> torch.Tensor:
    """The values of the store `label_names`."""
    width = max(len(label.encode()) for label in labels)
    return torch.tensor([list(label.encode().ljust(width, b"\0")) for label in labels], dtype=torch.uint8)


def root_of(
    model: dict[str, Any],
    objective: dict[str, Any],
    *,
    labels: tuple[str, ...] = NAMES,
    trained: bool = False,
    spread: float = 0.0,
    shape: DataShape = SHAPE,
) -> TrainableRoot:
    """A trainable root; with `spread` all its weights are drawn with that standard deviation."""
    generator = torch.Generator().manual_seed(0)
    model_config = parse_kind(MODELS, model, at="model")
    config = parse_kind(OBJECTIVES, {"kind": "classification", **objective}, at="objective")
    config.capabilities(model_config)
    built = model_config.build(shape, generator=generator)
    made = config.build(shape, label_names=names(*labels))
    made.attach(built)
    init_weights(made, generator)
    root = TrainableRoot(built, made)
    freeze(root, made.frozen_parts(trained=trained), trained=trained)
    if spread:
        for parameter in root.parameters():
            torch.nn.init.normal_(parameter, std=spread, generator=generator)
    return root


def root_of_case(case: str, **options: Any) -> TrainableRoot:
    return root_of(*CASES[case], labels=ANSWERS if case == "pairs" else NAMES, **options)


def batch(count: int = 12, *, filling: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(1)
    valid_BL = torch.arange(6) < torch.randint(2, 7, (count, 1), generator=draw)
    examples_B = torch.where(torch.arange(count) < count - filling, torch.arange(count), -1)

    def tokens() -> torch.Tensor:
        return torch.where(valid_BL, torch.randint(2, 12, (count, 6), generator=draw), 0)

    fields = {
        "labels": torch.randint(0, 3, (count, 1), generator=draw), "latents": torch.randn(count, 5, generator=draw),
        "pair_tokens": tokens().int(),
    }  # fmt: skip
    return Batch(
        tokens_BL=tokens(), valid_BL=valid_BL, fields=fields, examples_B=examples_B, position_B=torch.arange(count),
        global_size=count, global_tokens=int(valid_BL.sum()),
    )  # fmt: skip


def losses(root: TrainableRoot, data: Batch) -> Any:
    return root(data, RowGenerator(0, data.position_B), "classes", 0)
