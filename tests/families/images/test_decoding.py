"""Decoding of images from outside: every mode is grey or RGB, the digest is that of the pixels, and sizes are bounded."""

import io

import numpy as np
import pytest
from PIL import Image
from tests.families.images.pictures import encoded, picture

from mm_ldlm.data.corpus.sources import Unusable
from mm_ldlm.families.images.decoding import decode, digest


def test_the_digest_is_that_of_the_pixels_and_not_of_their_encoding() -> None:
    pixels = picture(0)
    assert {digest(decode(encoded(pixels, kind), max_pixels=30)) for kind in ("PNG", "BMP")} == {digest(pixels)}
    assert digest(pixels) != digest(pixels.reshape(5, 6, 3))


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("P", 3), ("RGB", 3), ("RGBA", 3)])
def test_every_mode_is_grey_or_rgb(mode: str, channels: int) -> None:
    grey, file = picture(3, 4, 5), io.BytesIO()
    Image.fromarray(grey).convert("RGB").convert(mode).save(file, "PNG")
    found = decode(file.getvalue(), max_pixels=20)
    assert found.shape == (4, 5, channels)
    if mode not in ("1", "P"):
        assert (found == grey[:, :, None]).all()


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_images_are_turned_upright_and_sixteen_bits_are_scaled(mode: str) -> None:
    upright = picture(0, 5, 4, 3 if mode == "RGB" else 1)
    turned = np.rot90(upright)  # orientation 6: the top of the picture is on the right side
    turned = turned.astype(np.uint16) * 257 if mode == "I;16" else turned
    exif = Image.Exif()
    exif[0x0112] = 6
    assert (decode(encoded(np.ascontiguousarray(turned), exif=exif), max_pixels=20) == upright).all()


@pytest.mark.parametrize(
    ("data", "most", "reason"),
    [
        (b"not an image", 100, "broken_file"),
        (encoded(picture(0))[:60], 100, "broken_file"),
        (encoded(picture(0), "TIFF"), 100, "broken_file"),
        (encoded(picture(0)), 29, "oversized"),
    ],
)
def test_unusable_images_have_a_reason(data: bytes, most: int, reason: str) -> None:
    with pytest.raises(Unusable) as error:
        decode(data, max_pixels=most)
    assert error.value.reason == reason
