"""MMDiT of captions and images: patches, null conditions, padding, noised vectors, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.families.images.model import ImageMMDiT, Patches
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS

SIZE = (4, 6, 3)
SHAPE = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10, image_size=SIZE)
P = 72
KINDS = ("image_mmdit", "image_mmdit_continuous")


def make(kind: str = "image_mmdit", shape: DataShape = SHAPE, **keys: Any) -> ImageMMDiT:
    config = parse_kind(MODELS, {"kind": kind, "dim": 32, "depth": 2, "heads": 4, **keys}, at="model")
    model: ImageMMDiT = config.build(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # adaLN-Zero starts with gates of 0
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model.eval()


def inputs(B: int = 3, L: int = 6) -> dict[str, Any]:
    g = torch.Generator().manual_seed(1)
    valid_BL = torch.arange(L)[None] < torch.tensor([L, L - 2, 1])[:, None]
    return {
        "tokens_BL": torch.randint(2, 23, (B, L), generator=g).masked_fill(~valid_BL, 0), "valid_BL": valid_BL,
        "t_text_B": torch.rand(B, generator=g), "t_image_B": torch.rand(B, generator=g),
        "images_BP": torch.randn(B, P, generator=g),
    }  # fmt: skip


def test_patches_are_squares_of_neighbouring_pixels_and_join_inverts_split() -> None:
    patches = Patches(SIZE, patch=2, dim=8)
    image = torch.arange(P).view(1, *SIZE)
    found = patches.split(image.flatten(1))
    assert found.shape == (1, 6, 12)
    assert torch.equal(found[0, 1].view(2, 2, 3), image[0, 0:2, 2:4])
    assert torch.equal(found[0, 3].view(2, 2, 3), image[0, 2:4, 0:2])
    assert torch.equal(patches.join(found), image.flatten(1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_outputs_have_the_shapes_of_the_data(kind: str) -> None:
    model, given = make(kind), inputs()
    out = model(**given)
    assert out.logits.shape == (3, 6, 23)
    assert out.images_BP.shape == (3, P)
    assert out.length_logits_BN.shape == (3, 10)
    at = given["valid_BL"]
    assert torch.allclose(model(**given, logits_at=at).logits, out.logits[at], atol=1e-5)
    only = model(**given, heads=("image",))
    assert torch.allclose(only.images_BP, out.images_BP, atol=1e-5)
    assert only.logits is only.length_logits_BN is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooled", [True, False])
def test_each_modality_reads_the_other(kind: str, pooled: bool) -> None:
    model, given = make(kind, pooled_conditions=pooled), inputs()
    out = model(**given)
    moved = model(**(given | {"images_BP": given["images_BP"].flip(1)}))
    assert ((moved.logits - out.logits).abs().amax(dim=(1, 2)) > 1e-4).all()
    other = given["tokens_BL"].clone()
    other[:, 0] = 2 + (other[:, 0] - 1) % 21
    assert ((model(**(given | {"tokens_BL": other})).images_BP - out.images_BP).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_condition_has_no_influence(kind: str) -> None:
    model, given = make(kind), inputs()
    null_B = torch.tensor([True, False, True])
    out = model(**given, null_text_B=null_B, heads=("image",)).images_BP
    other = model(**(given | {"tokens_BL": given["tokens_BL"].roll(1, 0)}), null_text_B=null_B, heads=("image",))
    same = (other.images_BP - out).abs().amax(dim=1) < 1e-6
    assert same.tolist() == [True, False, True]
    dropped = model(**given, null_image_B=null_B)
    moved = model(**(given | {"images_BP": -given["images_BP"]}), null_image_B=null_B)
    for a, b in (
        (dropped.logits.flatten(1), moved.logits.flatten(1)),
        (dropped.length_logits_BN, moved.length_logits_BN),
    ):
        assert ((a - b).abs().amax(dim=1) < 1e-6).tolist() == [True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_head_alone_and_the_method_for_it_return_the_lengths_of_a_whole_pass(kind: str) -> None:
    model, given, null_B = make(kind), inputs(), torch.tensor([True, False, True])
    whole = model(**given, null_image_B=null_B)
    alone = model(**given, null_image_B=null_B, heads=("length",))
    assert alone.logits is alone.images_BP is None
    assert torch.equal(alone.length_logits_BN, whole.length_logits_BN)
    assert torch.allclose(model.length_logits(given["images_BP"], null_B), whole.length_logits_BN, atol=1e-6)
    marginal = model(**given, null_length_B=torch.ones(3, dtype=torch.bool))
    assert torch.allclose(marginal.length_logits_BN, whole.length_logits_BN[:1].expand(3, -1), atol=1e-6)
    assert torch.equal(marginal.logits, model(**given).logits)
    with pytest.raises(ValueError, match="at most 10 tokens, found 11"):
        model(**given | {"tokens_BL": torch.full((3, 11), 2), "valid_BL": None})


def test_tied_embeddings_are_the_weights_of_the_output_for_words_alone() -> None:
    shape = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10, image_size=SIZE, noise_ids=2)
    model, given = make(shape=shape, tied_embeddings=True), inputs()
    assert model.text_embedding.weight.shape[0] == 25
    given["tokens_BL"][given["tokens_BL"] == 7] = 8
    with torch.no_grad():
        before = model(**given).logits
        model.text_embedding.weight[7] *= 2.0
        after = model(**given).logits
    assert before.shape == (3, 6, 23)
    assert torch.allclose(after[..., 7], 2 * before[..., 7])
    assert torch.equal(after[..., 8:], before[..., 8:])
    assert float(before[..., 7].abs().max()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_influence(kind: str) -> None:
    model, given = make(kind), inputs()
    short = {key: value[1:2] for key, value in given.items()}
    longer = model(**short)
    cut = model(**(short | {"tokens_BL": short["tokens_BL"][:, :4], "valid_BL": None}))
    assert torch.allclose(longer.images_BP, cut.images_BP, atol=1e-5)
    assert torch.allclose(longer.logits[:, :4], cut.logits, atol=1e-5)


def test_noised_vectors_are_signal_times_vector_plus_noise() -> None:
    model, given = make("image_mmdit_continuous"), inputs()
    vectors = model.unit_vectors
    assert torch.allclose(vectors.norm(dim=1), torch.full((23,), 4.0))
    clean = model(**given)
    zero = torch.zeros(3, 6, 16)
    assert torch.allclose(model(**given, captions_BLe=zero, signal_B=torch.ones(3)).logits, clean.logits, atol=1e-5)
    tokens = given["tokens_BL"]
    whole = model(**(given | {"tokens_BL": tokens.clamp(max=1)}), captions_BLe=0.3 * vectors[tokens])
    parts = model(**given, captions_BLe=zero, signal_B=torch.full((3,), 0.3))
    assert torch.allclose(whole.logits, parts.logits, atol=1e-5)
    with pytest.raises(ValueError, match="Expected captions as tokens, found vectors"):
        make()(**given, captions_BLe=zero)


def test_data_without_images_and_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'image_mmdit', which reads images, but the dataset has none"):
        make(shape=DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10))
    with pytest.raises(ConfigurationError, match=r"'model\.patch' is 4, which does not divide the 4 × 6 pixels"):
        make(patch=4)
    with pytest.raises(ConfigurationError, match="tied_embeddings must be false"):
        make("image_mmdit_continuous", tied_embeddings=True)
