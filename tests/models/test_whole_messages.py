"""The messages of the models, word for word, with the sizes that were found."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError, FreezingError
from mm_ldlm.families.atat.importance import ImportanceConfig
from mm_ldlm.families.ccdd.model import CcddConfig
from mm_ldlm.families.classification.latent_mlp import LatentMLPConfig
from mm_ldlm.families.images.model import ContinuousImageMMDiTConfig, ImageMMDiTConfig
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.freezing import FreezingSnapshot, freeze, verify_parameter_freezing
from mm_ldlm.models.mmdit import MMDiTConfig
from mm_ldlm.models.parts import tag, tagged_parameters
from mm_ldlm.models.registry import MODELS
from mm_ldlm.models.token_vectors import set_token_vectors

SHAPE = DataShape(
    vocab_size=9, pad_id=0, mask_id=1, max_length=4, latent_dim=3, state_dim=2, image_size=(4, 6, 1)
)  # fmt: skip
BARE = dataclasses.replace(SHAPE, latent_dim=None, state_dim=None, image_size=None)
VALUES: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: MMDiTConfig(dim=100, heads=3), "dim must be divisible by heads, found dim 100 and 3 heads", "dim heads"),
    (lambda: MMDiTConfig(dim=20, heads=4), "the dimension of a head must be even for RoPE, found 5", "dim heads"),
    (lambda: MMDiTConfig(dim=8, heads=2, mlp_ratio=0.05),
     "mlp_ratio · dim must be at least 1, found 0.05 · 8, an MLP without dimensions", "mlp_ratio"),
    (lambda: LatentMLPConfig(dim=4, mlp_ratio=0.1),
     "mlp_ratio · dim must be at least 1, found 0.1 · 4, an MLP without dimensions", "mlp_ratio"),
    (lambda: MMDiTConfig(depth=2, cross_modal_blocks=3), "cross_modal_blocks must lie in 1..depth (2), found 3",
     "cross_modal_blocks depth"),
    (lambda: ContinuousImageMMDiTConfig(tied_embeddings=True),
     "tied_embeddings must be false: token vectors have caption_dim dimensions, the hidden states have dim",
     "tied_embeddings"),
    (lambda: ContinuousImageMMDiTConfig(dim=9, heads=2), "dim must be divisible by heads, found dim 9 and 2 heads",
     "dim heads"),
    (lambda: ImportanceConfig(dim=10), "dim must be divisible by heads, found dim 10 and 4 heads", "dim heads"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words", "keys"), VALUES, ids=lambda each: None)
def test_sizes_that_do_not_fit_one_another(refused: Callable[[], Any], words: str, keys: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    named, _, found = str(raised.value).partition(": ")
    assert re.findall(r"'\w+\.([\w.]+)'", named) == keys.split()
    assert found == f"{words}."


@pytest.mark.parametrize(("dim", "ratio", "units"), [(8, 0.0624, None), (8, 0.0626, 1), (8, 0.1, 1), (8, 0.19, 2)])
def test_an_mlp_has_the_nearest_number_of_units_and_at_least_one(dim: int, ratio: float, units: int | None) -> None:
    """Half a unit is rounded to none."""
    if units is None:
        with pytest.raises(ConfigurationError, match="an MLP without dimensions"):
            MMDiTConfig(dim=dim, heads=2, mlp_ratio=ratio)
    else:
        assert MMDiTConfig(dim=dim, heads=2, mlp_ratio=ratio).mlp_dim == units


def build(config: Any, shape: DataShape = SHAPE) -> Any:
    return config.build(shape, generator=torch.Generator().manual_seed(0))


DATA: list[tuple[Callable[[], Any], str]] = [
    *((lambda kind=kind: build(parse_kind(MODELS, {"kind": kind}, at="model"), BARE),
       f"parameter 'model.kind' is '{kind}', which reads latents, but the dataset has none. Run the embedding and "
       "validation pipelines with an objective that needs latents, or choose a text-only model (model.kind: dit).")
      for kind in ("mmdit", "latent_dit", "latent_dit_cross", "latent_mlp")),
    (lambda: build(CcddConfig(), BARE),
     "parameter 'model.kind' is 'ccdd', which reads a continuous state of each token, but the dataset has none. Run "
     "the embedding and validation pipelines with the objective 'ccdd', or choose a text-only model (model.kind: "
     "dit)."),
    (lambda: build(ContinuousImageMMDiTConfig(), BARE),
     "parameter 'model.kind' is 'image_mmdit_continuous', which reads images, but the dataset has none. Run the "
     "embedding and validation pipelines with an objective that reads images, or choose another model."),
    (lambda: build(ImageMMDiTConfig(patch=4)),
     "parameter 'model.patch' is 4, which does not divide the 4 × 6 pixels of the images. Choose a divisor of both, or "
     "change images.height and images.width and embed again."),
]  # type: ignore[misc]  # fmt: skip


@pytest.mark.parametrize(("refused", "words"), DATA, ids=lambda each: None)
def test_data_that_do_not_fit_the_model(refused: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        refused()
    assert str(raised.value) == words


@pytest.mark.parametrize(("size", "patch"), [((4, 6, 1), 4), ((6, 4, 1), 4), ((6, 6, 2), 4), ((4, 6, 1), 2)])
def test_a_patch_divides_the_height_and_the_width(size: tuple[int, int, int], patch: int) -> None:
    config = ImageMMDiTConfig(dim=8, depth=1, heads=2, patch=patch)
    shape = dataclasses.replace(SHAPE, image_size=size)
    if patch == 2:
        assert build(config, shape).image_encoder.num_patches == 6
        return
    with pytest.raises(ConfigurationError, match=rf"the {size[0]} × {size[1]} pixels"):
        build(config, shape)


def two_parts() -> nn.Sequential:
    return nn.Sequential(tag(nn.Linear(2, 2), "encoder", input=True), tag(nn.Linear(2, 1), "text_head"))


def moved() -> None:
    model = two_parts()
    freeze(model, {"text_head"})
    snapshot = FreezingSnapshot(model)
    model[1].bias.data += 1
    model[0].weight.requires_grad_(False)
    verify_parameter_freezing(model, snapshot)


def thawed() -> None:
    """Each fault of a frozen parameter is reported, and all of them."""
    model = two_parts()
    freeze(model, {"text_head"})
    snapshot = FreezingSnapshot(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    snapshot.observe(model)
    model[1].weight.requires_grad_(True)
    model[1].weight.data += 1
    verify_parameter_freezing(model, snapshot)


FROZEN: list[tuple[Callable[[], Any], str]] = [
    (lambda: freeze(two_parts(), {"text_hed", "text_head", "other"}),
     "expected parts of the model (encoder, text_head), found ['other', 'text_hed']."),
    (lambda: freeze(two_parts(), {"text_head", "encoder"}),
     "encoder would be frozen at random initial values, and an input layer with random weights destroys its input. "
     "Load trained weights first (training.init_from), or leave these parts trainable."),
    (lambda: list(tagged_parameters(nn.Sequential(nn.Linear(1, 1)))),
     "parameter 0.weight belongs to no part. Call models.parts.tag where its layer is made."),
    (moved,
     "3 faults: parameters are not trained or frozen as configured:\n"
     "  0.weight (encoder) was trainable at the start and is frozen now\n"
     "  0.bias (encoder) is trainable and has had no gradient\n"
     "  1.bias (text_head) is frozen and has moved"),
    (thawed,
     "4 faults: parameters are not trained or frozen as configured:\n"
     "  1.weight (text_head) is frozen and has moved\n"
     "  1.weight (text_head) was frozen at the start and is trainable now\n"
     "  1.weight (text_head) is frozen and had a gradient\n"
     "  1.bias (text_head) is frozen and had a gradient"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "words"), FROZEN, ids=lambda each: None)
def test_parts_that_cannot_be_frozen_and_faults_of_freezing(refused: Callable[[], Any], words: str) -> None:
    with pytest.raises(FreezingError) as raised:
        refused()
    assert str(raised.value) == words


def test_token_vectors_of_another_vocabulary() -> None:
    with pytest.raises(ValueError) as raised:  # the whole message is compared below
        set_token_vectors([], torch.zeros(8, 5), shape=SHAPE)
    assert str(raised.value) == (
        "token vectors: expected the shape (9, 3) (vocab_size, latent_dim), found (8, 5)"
    )  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in MODELS.known if kind != "latent_mlp"])
def test_a_text_of_the_largest_length_is_read_and_a_longer_one_is_refused(kind: str) -> None:
    model = build(parse_kind(MODELS, {"kind": kind, "dim": 8, "depth": 1, "heads": 2}, at="model"))
    given: dict[str, Any] = {
        "dit": {"t_B": torch.ones(1)}, "causal": {},
        "latent_dit": {"t_B": torch.ones(1), "latents_Bd": torch.ones(1, 3)},
        "ccdd": {"t_text_B": torch.ones(1), "t_state_B": torch.ones(1)},
        "mmdit": {"t_text_B": torch.ones(1), "t_latent_B": torch.ones(1), "latents_Bd": torch.ones(1, 3)},
        "image_mmdit": {"t_text_B": torch.ones(1), "t_image_B": torch.ones(1), "images_BP": torch.ones(1, 24)},
    }[kind.replace("_cross", "").replace("_continuous", "")]  # fmt: skip

    def read(length: int) -> Any:
        states = {"states_BLd": torch.ones(1, length, 2)} if kind == "ccdd" else {}
        valid = {} if kind == "causal" else {"valid_BL": None}
        return model(torch.full((1, length), 3), **given, **valid, **states)

    assert read(4) is not None
    with pytest.raises(ValueError, match=r"(texts|captions) of at most 4 tokens, found 6"):
        read(6)
