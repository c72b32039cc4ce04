"""Numbers of parameters of every part of every model, counted by hand: checkpoints have just these, and an option adds
weights to its own part alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.models.base import DataShape, sizes_only
from mm_ldlm.models.heads import ClassHead, ComparisonHead
from mm_ldlm.models.parts import count_by_part
from mm_ldlm.models.registry import MODELS

V, N, d, s, DEPTH = 23, 10, 6, 5, 3
SHAPE = DataShape(
    vocab_size=V, pad_id=30, mask_id=24, max_length=N, latent_dim=d, state_dim=s, image_size=(4, 6, 3), noise_ids=2
)  # fmt: skip
IDS, WORDS_AND_SPECIALS, P, TIMES = 33, 31, 72, 256
D, C, M, K, W, p, c = 16, 12, 40, 3, 20, 12, 7
"""dim, conditioning, MLP, latent tokens, length head, values of a patch (2 × 2 × 3), caption vector"""
OWN: dict[str, dict[str, Any]] = {
    "mmdit": {"latent_tokens": K, "length_hidden_dim": W}, "latent_dit": {"length_hidden_dim": W},
    "latent_dit_cross": {"latent_tokens": K, "length_hidden_dim": W}, "image_mmdit": {"length_hidden_dim": W},
    "image_mmdit_continuous": {"length_hidden_dim": W, "caption_dim": c},
}  # fmt: skip


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def mlp(inputs: int, outputs: int) -> int:
    return linear(inputs, outputs) + linear(outputs, outputs)


TAIL = D * D + 2 * D * M
"""Output of attention and MLP, which belong to a head in the last block of two streams"""
STREAM = linear(C, 6 * D) + 3 * D * D + 2 * D + TAIL
CROSS = linear(C, 3 * D) + 4 * D * D + 2 * D
NORM = linear(C, 2 * D)
TIME = mlp(TIMES, C)


def lengths(inputs: int) -> int:
    return linear(inputs, W) + linear(W, W) + linear(W, N)


TEXT = {"text_embedding": IDS * D + N * D, "conditioning": TIME, "backbone": DEPTH * STREAM,
        "text_head": NORM + linear(D, V)}  # fmt: skip
TWO = {"conditioning": 2 * TIME, "null_text": D, "backbone": DEPTH * 2 * STREAM - 2 * TAIL,
       "text_head": NORM + linear(D, V) + TAIL}  # fmt: skip
MMDIT = {
    **TWO, "text_embedding": IDS * D, "null_latent": d, "conditioning": 2 * TIME + mlp(d, C),
    "latent_encoder": linear(d, K * D) + K * D, "latent_head": NORM + linear(K * D, d) + TAIL,
    "length_head": lengths(d),
}  # fmt: skip
IMAGES = {
    **TWO, "text_embedding": IDS * D + N * D, "null_image": P, "conditioning": 2 * TIME + mlp(D, C) + mlp(P, C),
    "image_encoder": linear(p, D) + 6 * D, "image_head": NORM + linear(D, p) + TAIL, "length_head": lengths(P),
}  # fmt: skip
ENCODED = {**MMDIT, "text_embedding": IDS * d + d * D, "text_head": NORM + linear(D, d) + V * d + V + TAIL}
LATENT = {**TEXT, "null_latent": d, "length_head": lengths(d)}
CAUSAL = {"text_embedding": (WORDS_AND_SPECIALS + 1) * D, "text_head": D + D * (V + 1),
          "backbone": DEPTH * (2 * D + 4 * D * D + 2 * D + 2 * D * M)}  # fmt: skip
# kind, options, and the elements of each part
CASES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("dit", {}, {**TEXT, "length_head": N}),
    ("dit", {"qk_norm": False}, {**TEXT, "length_head": N, "backbone": DEPTH * (STREAM - 2 * D)}),
    ("dit", {"mlp_bias": True}, {**TEXT, "length_head": N, "backbone": DEPTH * (STREAM + M + D)}),
    ("dit", {"tied_embeddings": True}, {**TEXT, "length_head": N, "text_head": NORM}),
    ("ccdd", {}, {**TEXT, "length_head": N, "conditioning": 2 * TIME, "state_encoder": linear(s, D), "null_state": s,
                  "state_head": NORM + linear(D, s)}),
    ("latent_dit", {}, {**LATENT, "latent_encoder": mlp(d, C)}),
    ("latent_dit_cross", {}, {**LATENT, "latent_encoder": linear(d, K * D) + K * D,
                              "backbone": DEPTH * STREAM + 2 * CROSS}),
    ("latent_mlp", {}, {"backbone": linear(d, D) + DEPTH * (linear(D, M) + linear(M, D))}),
    ("causal", {}, CAUSAL),
    ("mmdit", {}, MMDIT),
    ("mmdit", {"condition_on_latent": False}, {**MMDIT, "conditioning": 2 * TIME}),
    ("mmdit", {"self_condition": True}, {**MMDIT, "latent_encoder": linear(2 * d, K * D) + K * D}),
    ("mmdit", {"direct_views": True}, {**MMDIT, "latent_encoder": linear(d, K * D) + K * D + N * D * d,
                                       "conditioning": 2 * TIME + mlp(d, C) + linear(D, K * D)}),
    ("mmdit", {"tied_embeddings": True}, {**MMDIT, "text_head": NORM + V + TAIL}),
    ("mmdit", {"token_vectors": "encoder"}, ENCODED),
    ("mmdit", {"token_vectors": "encoder", "tied_embeddings": True}, {**ENCODED,
                                                                      "text_head": NORM + linear(D, d) + V + TAIL}),
    ("mmdit", {"token_vectors": "encoder", "direct_views": True}, {
        **ENCODED, "latent_encoder": linear(d, K * D) + K * D + N * D * d,
        "conditioning": 2 * TIME + mlp(d, C) + linear(d, K * D)}),
    ("mmdit", {"cross_modal_blocks": 2}, {**MMDIT, "backbone": 5 * STREAM, "text_head": NORM + linear(D, V),
                                          "latent_head": NORM + linear(K * D, d)}),
    ("image_mmdit", {}, IMAGES),
    ("image_mmdit", {"pooled_conditions": False}, {**IMAGES, "conditioning": 2 * TIME}),
    ("image_mmdit", {"tied_embeddings": True}, {**IMAGES, "text_head": NORM + TAIL}),
    ("image_mmdit_continuous", {}, {**IMAGES, "text_embedding": IDS * c + linear(c, D) + N * D}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "expected"), CASES, ids=lambda each: str(each)[:40])
def test_the_parts_of_a_model_have_as_many_parameters_as_their_layers(
    kind: str, options: dict[str, Any], expected: dict[str, int]
) -> None:
    size = {"dim": D, "depth": DEPTH, "mlp_ratio": M / D, **OWN.get(kind, {}), **options}
    size |= {} if kind == "latent_mlp" else {"heads": 2}
    size |= {} if kind in ("latent_mlp", "causal") else {"conditioning_dim": C}
    config = parse_kind(MODELS, {"kind": kind, **size}, at="model")
    with sizes_only():
        model = config.build(SHAPE, generator=torch.Generator())
    assert {part: count["trains"] for part, count in count_by_part(model).items()} == expected
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()], "tables are made again"


def test_every_kind_is_counted() -> None:
    assert {kind for kind, _, _ in CASES} == set(MODELS.known)


@pytest.mark.parametrize(("pad_id", "mask_id", "rows"), [(0, 1, V), (30, 24, 31), (24, 30, 31), (V, 0, V + 1)])
def test_the_estimator_reads_all_ids_of_the_tokenizer(pad_id: int, mask_id: int, rows: int) -> None:
    shape = DataShape(vocab_size=V, pad_id=pad_id, mask_id=mask_id, max_length=N)
    made = ImportanceEstimator(ImportanceConfig(dim=D, depth=2, heads=2), shape)
    block = 2 * 2 * D + 4 * D * D + linear(D, 4 * D) + linear(4 * D, D)
    expected = rows * D + N * D + 2 * block + 2 * D + linear(D, D) + linear(D, 1)
    assert {part: count["trains"] for part, count in count_by_part(made).items()} == {"importance": expected}


def test_the_heads_of_classifiers() -> None:
    assert sum(x.numel() for x in ClassHead(D, 5).parameters()) == linear(D, 5)
    assert sum(x.numel() for x in ComparisonHead(D, hidden_dim=9).parameters()) == linear(2 * D, 9) + 2 * 9 + 1


@pytest.mark.parametrize("kind", ["mmdit", "latent_dit", "image_mmdit", "image_mmdit_continuous"])
def test_the_length_head_has_the_dimension_of_the_model_by_default(kind: str) -> None:
    size = {"dim": D, "depth": 1, "heads": 2, "conditioning_dim": C}
    config = parse_kind(MODELS, {"kind": kind, **size}, at="model")
    with sizes_only():
        model = config.build(SHAPE, generator=torch.Generator())
    inputs = P if "image" in kind else d
    found = count_by_part(model)["length_head"]["trains"]
    assert found == linear(inputs, D) + linear(D, D) + linear(D, N)
