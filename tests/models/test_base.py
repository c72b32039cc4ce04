"""The shape of the data, models that are built for their sizes alone, and the features of a model for a head."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.families.classification.latent_mlp import LatentMLP
from mm_ldlm.models.base import DataShape, count_parameters, require_latents, sizes_only
from mm_ldlm.models.dit import DiT, DiTConfig
from mm_ldlm.models.mmdit import MMDiT, MMDiTConfig
from mm_ldlm.models.parts import tagged_parameters
from mm_ldlm.models.registry import MODELS

SHAPE = DataShape(vocab_size=7, pad_id=2, mask_id=5, max_length=4, latent_dim=3)


@pytest.mark.parametrize(
    ("pad_id", "mask_id", "first", "words"),
    [
        (2, 5, 7, [0, 1, 3, 4, 6]), (7, 8, 9, [0, 1, 2, 3, 4, 5, 6]), (9, 7, 10, [0, 1, 2, 3, 4, 5, 6]),
        (0, 7, 8, [1, 2, 3, 4, 5, 6]), (7, 6, 8, [0, 1, 2, 3, 4, 5]),
    ],
)  # fmt: skip
def test_the_ids_of_the_noise_follow_all_others_and_words_are_neither_pad_nor_mask(
    pad_id: int, mask_id: int, first: int, words: list[int]
) -> None:
    shape = dataclasses.replace(SHAPE, pad_id=pad_id, mask_id=mask_id, noise_ids=4)
    assert (shape.first_noise_id, shape.num_ids, shape.word_ids) == (first, first + 4, words)
    assert dataclasses.replace(shape, noise_ids=0).num_ids == first


def test_a_shape_survives_json() -> None:
    shape = dataclasses.replace(SHAPE, image_size=(4, 3, 2))
    assert DataShape(**json.loads(json.dumps(dataclasses.asdict(shape)))) == shape
    assert hash(shape) == hash(dataclasses.replace(SHAPE, image_size=[4, 3, 2]))  # type: ignore[arg-type]
    assert (shape.image_dim, SHAPE.image_dim) == (24, 0)


def test_the_dimension_of_a_latent_is_that_of_the_data() -> None:
    assert require_latents(SHAPE, "mmdit") == 3
    assert require_latents(dataclasses.replace(SHAPE, latent_dim=11), "mmdit") == 11


def test_models_have_values_again_after_a_count_of_sizes_even_if_it_fails() -> None:
    def built() -> Any:
        return DiTConfig(dim=8, depth=1, heads=2).build(SHAPE, generator=torch.Generator().manual_seed(0))

    def device(model: Any) -> str:
        return str(next(model.parameters()).device.type)

    assert device(built()) == "cpu"
    with sizes_only():
        sized = built()
        with sizes_only():
            assert device(built()) == "meta"
        assert device(sized) == device(built()) == "meta"
    assert device(built()) == "cpu"
    assert count_parameters(sized) == count_parameters(built())

    def fails() -> None:
        with sizes_only():
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert device(built()) == "cpu"


@pytest.mark.parametrize(
    ("pad_id", "mask_id"), [(-1, 1), (1, -1), (-2, -1), (3, 3)]
)  # fmt: skip
def test_special_ids_that_are_no_ids_are_refused(pad_id: int, mask_id: int) -> None:
    shape = dataclasses.replace(SHAPE, pad_id=pad_id, mask_id=mask_id)
    with pytest.raises(ValueError, match=rf"two different ids ≥ 0, found {pad_id} and {mask_id}\."):
        MMDiTConfig(dim=8, depth=1, heads=2).build(shape, generator=torch.Generator())


FEATURES: list[tuple[dict[str, Any], type]] = [
    ({"kind": "dit", "dim": 8, "depth": 2, "heads": 2}, DiT),
    ({"kind": "mmdit", "dim": 8, "depth": 2, "heads": 2}, MMDiT),
    ({"kind": "mmdit", "dim": 8, "depth": 2, "heads": 2, "direct_views": True, "cross_modal_blocks": 1}, MMDiT),
    ({"kind": "latent_mlp", "dim": 8, "depth": 2}, LatentMLP),
]


@pytest.mark.parametrize(("options", "kind"), FEATURES, ids=str)
def test_the_parts_that_features_depend_on_are_those_whose_parameters_all_get_a_gradient_from_them(
    options: dict[str, Any], kind: type
) -> None:
    model = parse_kind(MODELS, options, at="model").build(SHAPE, generator=torch.Generator().manual_seed(0))
    assert isinstance(model, kind)
    for number, parameter in enumerate(model.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    inputs = torch.randn(3, 3) if kind is LatentMLP else torch.tensor([[0, 1, 3], [4, 6, 2]])
    valid = None if kind is LatentMLP else inputs != 2
    found = model.features(inputs, valid_BL=valid)
    assert found.shape == (len(inputs), model.feature_dim)
    found.square().sum().backward()
    seen: dict[str, list[bool]] = {}
    for _, part, p in tagged_parameters(model):
        seen.setdefault(part.name, []).append(p.grad is not None and bool((p.grad != 0).any()))
    assert model.feature_parts == {part for part, read in seen.items() if all(read)}
