"""Images of records: bounded decoding, the digest of their pixels, and the reference by which a record names its image.

Records contain no pixels. A record names its image in `meta`, under "image", by the digest of its pixels and by one of

    {"file": path}                              an image file
    {"tar": path, "offset": n, "bytes": m}      a member of an uncompressed tar archive
    {"digits": n}                               an image of the digits that scikit-learn contains

H height, W width, C channels.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import Bytes, config

Pixels = npt.NDArray[np.uint8]
"""(H, W, C), C = 1 or 3"""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Formats that are decoded; of an animation only the first frame. Pillow reads more, and some have known weaknesses."""


@config
class ImageLimits:
    """Bounds on the images of a source; larger ones go to quarantine before they are decoded.

    Attributes:
        max_bytes: size of the encoded image.
        max_pixels: height · width.
    """

    max_bytes: Bytes = 20_000_000
    max_pixels: Bytes = 30_000_000


class UnusableImage(Exception):
    """An image that cannot be used: `reason` is one of `corpus.sources.base.DAMAGE`, `detail` explains it."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def decode(data: bytes, *, limits: ImageLimits) -> Pixels:
    """Decode an image: grey (C = 1) where the file is grey, otherwise RGB, upright by its EXIF orientation.

    Raises:
        UnusableImage: it is too large, damaged, or of another format.
    """
    from PIL import Image, ImageOps

    if len(data) > limits.max_bytes:
        raise UnusableImage("oversized", f"{len(data)} bytes, at most {limits.max_bytes} are decoded")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size  # from the header; nothing is decoded yet
            if width * height > limits.max_pixels:
                raise UnusableImage("oversized", f"{width} × {height} pixels, at most {limits.max_pixels} are decoded")
            upright = ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would cut off at 255
                values = np.round(np.asarray(upright, np.float64) / 257).clip(0, 255).astype(np.uint8)
            else:
                grey = image.mode in ("1", "L", "LA")
                values = np.asarray(upright.convert("L" if grey else "RGB"), np.uint8)
    except UnusableImage:
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise UnusableImage("broken_image", f"not a readable image ({type(error).__name__}: {error})") from None
    return values if values.ndim == 3 else values[:, :, None]


def digest(pixels: Pixels) -> str:
    """Return the digest of pixels and their shape, 32 hexadecimal digits; the same for every encoding of a picture."""
    shape = ",".join(map(str, pixels.shape)).encode()
    return hashlib.blake2b(shape + b"\0" + np.ascontiguousarray(pixels).tobytes(), digest_size=16).hexdigest()


def read_image(reference: Mapping[str, Any], *, limits: ImageLimits) -> Pixels:
    """Read the image that a reference names.

    Raises:
        UnusableImage: it is missing, or `decode` refuses it.
    """
    if "digits" in reference:
        return digits()[0][int(reference["digits"])]
    path = Path(str(reference.get("file") or reference.get("tar")))
    try:
        with open(path, "rb") as file:
            if "tar" not in reference:
                return decode(file.read(limits.max_bytes + 1), limits=limits)
            file.seek(int(reference["offset"]))
            return decode(file.read(min(int(reference["bytes"]), limits.max_bytes + 1)), limits=limits)
    except OSError as error:
        raise UnusableImage("missing_file", f"{path}: {error.strerror or error}") from None


def meta_of(reference: Mapping[str, Any], pixels: Pixels, /, **more: Any) -> tuple[str, str]:
    """Return (`meta` of a record with this image, digest of the image)."""
    key = digest(pixels)
    return json.dumps({**more, "image": {**reference, "digest": key}}, ensure_ascii=True), key


def reference_of(meta: str | None) -> dict[str, Any] | None:
    """Return the reference to the image of a record, by its `meta`; None for a record without an image."""
    if meta is None or '"image"' not in meta:
        return None
    found = json.loads(meta).get("image")
    return found if isinstance(found, dict) and "digest" in found else None


def digest_of(meta: str | None) -> str | None:
    """Return the digest of the image of a record, by its `meta`; None for a record without an image."""
    found = reference_of(meta)
    return None if found is None else str(found["digest"])


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
