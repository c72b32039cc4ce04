"""The store of images: one row of pixels per record, in the order of the records, as vectors of the latent store.

Images are cropped to the shape of the store around their centre, resized, and scaled to 0 (black) … 1 (white).

H height, W width, C channels, P = H · W · C values of an image.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.config import Size, config
from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.corpus.record import reference_of
from mm_ldlm.data.corpus.sources import Unusable
from mm_ldlm.data.features import Feature, Field, Inputs
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.latents.store import KIND, schema, table
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.images.config import ImagesSuiteConfig, ImageTasksConfig
from mm_ldlm.families.images.decoding import Pixels, digest, read_image

_ROWS = 1024


@config
class ImagesConfig:
    """Size of the stored images, their standardisation, and parameters of their samples.

    Attributes:
        channels: 1 (grey) or 3 (RGB).
        normaliser: with one scale for all pixels, because those that hardly vary would be scaled up to noise.
        sampling: the tasks of the sampling pipeline on images.
        evaluation: the suite that scores them.
    """

    height: Size = 32
    width: Size = 32
    channels: Literal[1, 3] = 3
    normaliser: NormaliserConfig = NormaliserConfig(kind="one_scale")
    sampling: ImageTasksConfig = ImageTasksConfig()
    evaluation: ImagesSuiteConfig = ImagesSuiteConfig()

    @property
    def size(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


@dataclasses.dataclass(frozen=True)
class Images(Feature):
    """The pixels of each record's image."""

    images: ImagesConfig

    name = "images"
    kind = KIND
    column = "latent"
    normaliser_folder = "image_normaliser"

    @property
    def variant(self) -> str:
        return "x".join(map(str, self.images.size))

    @property
    def standardisation(self) -> NormaliserConfig:
        return self.images.normaliser

    @classmethod
    def field(cls, store: ShardStore, tokens: ShardStore) -> Field:
        return Field(store, column=cls.column, shape=tuple(store.manifest.meta["image_size"]))

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Read, resize and store the images.

        Raises:
            StoreError: a record has no image, or its image changed after ingestion.
        """
        records, size = inputs.records, self.images.size
        made_by = {"records": records.manifest.fingerprint, "image_size": fingerprint(list(size))}
        if (kept := ShardStore.finished(workspace, made_by)) is not None:
            return kept
        writer = StoreWriter(workspace, kind=KIND, schema=schema(math.prod(size), "float32"))
        for start in range(0, len(records), _ROWS):
            part = records.window(start, min(start + _ROWS, len(records)), columns=["id", "meta"])
            ids = part["id"].to_pylist()
            vectors_nP = np.stack([
                _vector(records, name, meta, self.images)
                for name, meta in zip(ids, part["meta"].to_pylist(), strict=True)
            ])  # fmt: skip
            writer.append(table(ids, vectors_nP, dtype="float32"))
        return writer.finish(fingerprints=made_by, meta={"dim": math.prod(size), "image_size": list(size)})


def _vector(records: ShardStore, name: str, meta: str | None, config: ImagesConfig) -> npt.NDArray[np.float32]:
    reference = reference_of(meta)
    if reference is None:
        raise StoreError(
            f"{records.directory}: record {name} has no image, but the objective reads images. Choose a source with "
            "images (digits, image_folder, webdataset), or an objective without them."
        )
    try:
        pixels = read_image(reference)
    except Unusable as error:
        raise StoreError(f"record {name}: its image is no longer readable: {error.detail}. {_AGAIN}") from None
    if (found := digest(pixels)) != reference["digest"]:
        raise StoreError(
            f"record {name}: expected an image with the digest {reference['digest']}, found {found}: the image changed "
            f"after ingestion. {_AGAIN}"
        )
    return resize(pixels, config).reshape(-1)


_AGAIN = "Restore it, or run `kedro run --pipelines=ingestion,embedding,validation`."


def resize(pixels: Pixels, config: ImagesConfig) -> npt.NDArray[np.float32]:
    """Convert pixels (H', W', C') to (H, W, C) float32 between 0 and 1; pixels of that size are not resampled."""
    from PIL import Image, ImageOps

    if pixels.shape[2] != config.channels:
        mode = "L" if config.channels == 1 else "RGB"
        converted = np.asarray(_picture(pixels).convert(mode), np.uint8)
        pixels = converted if converted.ndim == 3 else converted[:, :, None]
    if pixels.shape[:2] != (config.height, config.width):
        fitted: Any = ImageOps.fit(_picture(pixels), (config.width, config.height), Image.Resampling.LANCZOS)
        pixels = np.asarray(fitted, np.uint8).reshape(config.size)
    return np.asarray(pixels, np.float32) / np.float32(255)


def _picture(pixels: Pixels) -> Any:
    from PIL import Image

    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
