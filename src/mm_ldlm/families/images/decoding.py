"""Images of records: bounded decoding, the digest of their pixels, and the reference by which a record names its image.

Records contain no pixels. A record names its image in `meta`, under "describes", by the digest of its pixels and by one
of

    {"file": path, "bytes": m, "size": [H, W]}                 an image file
    {"tar": path, "offset": n, "bytes": m, "size": [H, W]}     a member of an uncompressed tar archive
    {"digits": n}                                              an image of the digits that scikit-learn contains

H height, W width, C channels.
"""

import functools
import hashlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import foreign_code
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.data.corpus.record import DESCRIBES
from mm_ldlm.data.corpus.sources import Row

Pixels = npt.NDArray[np.uint8]
"""(H, W, C), C = 1 or 3"""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Formats that are decoded; of an animation only the first frame. Pillow reads more, and some have known weaknesses."""


def decode(data: bytes, *, max_pixels: int) -> Pixels:
    """Decode an image: grey (C = 1) where the file is grey, otherwise RGB, upright by its EXIF orientation.

    Raises:
        Unusable: it is too large, damaged, or of another format.
    """
    from PIL import Image, ImageOps

    def broken(reason: str) -> Unusable:
        return Unusable("broken_file", f"not a readable image ({reason})")

    with foreign_code(broken, Exception):  # Pillow raises many types for damaged files
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size  # from the header; nothing is decoded yet
    if width * height > max_pixels:
        raise Unusable("oversized", f"{width} × {height} pixels, at most {max_pixels} are decoded")
    with foreign_code(broken, Exception):
        upright = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would cut off at 255
            values = np.round(np.asarray(upright, np.float64) / 257).clip(0, 255).astype(np.uint8)
        else:
            grey = image.mode in ("1", "L", "LA")
            values = np.asarray(upright.convert("L" if grey else "RGB"), np.uint8)
    return values if values.ndim == 3 else values[:, :, None]


def digest(pixels: Pixels) -> str:
    """Return the digest of pixels and their shape, 32 hexadecimal digits; the same for every encoding of a picture."""
    shape = ",".join(map(str, pixels.shape)).encode()
    return hashlib.blake2b(shape + b"\0" + np.ascontiguousarray(pixels).tobytes(), digest_size=16).hexdigest()


def with_image(row: Row, reference: Mapping[str, Any], pixels: Pixels) -> Row:
    """Return the row of a caption with its image."""
    key = digest(pixels)
    return row._replace(meta={**row.meta, DESCRIBES: {**reference, "digest": key}}, describes=key)


def read_image(reference: Mapping[str, Any]) -> Pixels:
    """Read the image that a reference names, as large as it was.

    Raises:
        Unusable: it is missing, damaged or larger.
    """
    if "digits" in reference:
        return digits()[0][int(reference["digits"])]
    height, width = reference["size"]
    path = reference.get("file") or reference["tar"]
    try:
        with open(path, "rb") as file:
            file.seek(reference.get("offset", 0))
            data = file.read(reference["bytes"])
    except OSError as error:
        raise Unusable("missing_file", f"{path}: {error.strerror or error}") from None
    return decode(data, max_pixels=height * width)


@functools.cache
def digits() -> tuple[Pixels, tuple[int, ...]]:
    """Read the 1,797 handwritten digits of scikit-learn, (n, 8, 8, 1), and their labels.

    They are the test part of "Optical Recognition of Handwritten Digits" (UCI, Alpaydin and Kaynak 1998), with grey
    levels 0..16, here scaled to 0..255.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.round(found.images * (255 / 16)).astype(np.uint8)[..., None]
    return pixels, tuple(int(label) for label in found.target)
