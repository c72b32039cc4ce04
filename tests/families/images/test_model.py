"""MMDiT of captions and images: patches, null conditions, padding, noised vectors, and what does not fit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.families.images.builds import model

from mm_ldlm.core import ConfigurationError
from mm_ldlm.families.images.model import Patches
from mm_ldlm.models.base import DataShape

SIZE = (4, 6, 3)
SHAPE = DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10, fields={"images": SIZE})
P = 72
KINDS = ("image_mmdit", "image_mmdit_continuous")


def made(kind: str = "image_mmdit", **keys: Any) -> Any:
    return model(kind, SHAPE, spread=0.1, **keys).eval()


def inputs(L: int = 6) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    valid_BL = torch.arange(L)[None] < torch.tensor([L, L - 2, 1])[:, None]
    return {
        "tokens_BL": torch.randint(2, 23, (3, L), generator=draw).masked_fill(~valid_BL, 0), "valid_BL": valid_BL,
        "t_text_B": torch.rand(3, generator=draw), "t_latent_B": torch.rand(3, generator=draw),
        "latents_Bd": torch.randn(3, P, generator=draw),
    }  # fmt: skip


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), side=st.integers(1, 3), channels=st.sampled_from([1, 3]))
def test_patches_are_squares_of_neighbouring_pixels(rows: int, columns: int, side: int, channels: int) -> None:
    size = (rows * side, columns * side, channels)
    patches = Patches(size, patch=side, dim=8)
    image = torch.arange(rows * columns * side * side * channels).view(1, *size)
    found = patches.split(image.flatten(1))
    assert found.shape == (1, rows * columns, side * side * channels)
    for number in range(rows * columns):
        top, left = side * (number // columns), side * (number % columns)
        square = image[0, top : top + side, left : left + side]
        assert torch.equal(found[0, number].view(side, side, channels), square)
    assert torch.equal(patches.join(found), image.flatten(1))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_dropped_condition_has_no_influence(kind: str) -> None:
    net, asked, null_B = made(kind), inputs(), torch.tensor([True, False, True])
    out, other = (
        net(**asked | {"tokens_BL": tokens_BL}, null_text_B=null_B, heads=("latent",)).latent_Bd
        for tokens_BL in (asked["tokens_BL"], asked["tokens_BL"].roll(1, 0))
    )
    assert ((other - out).abs().amax(dim=1) < 1e-6).tolist() == null_B.tolist()
    out, other = (
        net(**asked | {"latents_Bd": images_BP}, null_latent_B=null_B)
        for images_BP in (asked["latents_Bd"], -asked["latents_Bd"])
    )
    for a, b in ((out.logits.flatten(1), other.logits.flatten(1)), (out.length_logits, other.length_logits)):
        assert ((a - b).abs().amax(dim=1) < 1e-6).tolist() == null_B.tolist()


@torch.no_grad()
def test_noised_vectors_are_signal_times_vector_plus_noise() -> None:
    net, asked, zero = made("image_mmdit_continuous"), inputs(), torch.zeros(3, 6, 16)
    vectors_Ve, tokens_BL = net.text_embedding.unit_vectors, asked["tokens_BL"]
    torch.testing.assert_close(vectors_Ve.norm(dim=1), torch.full((23,), 4.0))
    clean = net(**asked).logits
    torch.testing.assert_close(net(**asked, captions_BLe=zero, signal_B=torch.ones(3)).logits, clean)
    whole = net(**asked | {"tokens_BL": tokens_BL.clamp(max=1)}, captions_BLe=0.3 * vectors_Ve[tokens_BL]).logits
    parts = net(**asked, captions_BLe=zero, signal_B=torch.full((3,), 0.3)).logits
    torch.testing.assert_close(whole, parts)
    assert not torch.allclose(whole, clean, atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "shape", "keys", "named"),
    [
        ("image_mmdit", DataShape(vocab_size=23, pad_id=0, mask_id=1, max_length=10), {}, "images"),
        ("image_mmdit", SHAPE, {"patch": 4}, "4 × 6"),
        ("image_mmdit_continuous", SHAPE, {"tied_embeddings": True}, "tied_embeddings"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: str, shape: DataShape, keys: Any, named: str, refuses: Callable[..., Any]
) -> None:
    with refuses(ConfigurationError, named):
        model(kind, shape, **keys)
