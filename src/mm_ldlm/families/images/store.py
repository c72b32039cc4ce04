"""The store of images: one row of pixels per record, in the order of the records, as vectors of the latent store.

Images are cropped to the shape of the store around their centre, resized, and scaled to 0 (black) … 1 (white).

H height, W width, C channels, P = H · W · C values of an image.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core import StoreError
from mm_ldlm.data.corpus.quarantine import Unusable
from mm_ldlm.data.corpus.record import reference_of
from mm_ldlm.data.features import Feature, Field, Inputs
from mm_ldlm.data.latents.normaliser import NormaliserConfig
from mm_ldlm.data.latents.store import KIND, schema, table
from mm_ldlm.data.store import Manifest, ShardStore, write_store
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.families.images.decoding import Pixels, digest, read_image

_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class Images(Feature):
    """The pixels of each record's image."""

    images: Any

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
        if (kept := Manifest.finished(workspace, made_by)) is not None:
            return kept

        def tables() -> Iterator[pa.Table]:
            for part in records.iter_tables(_ROWS, columns=["id", "meta"]):
                rows = part.to_pylist()
                vectors_nP = np.stack([resize(_pixels(row["id"], row["meta"]), size).reshape(-1) for row in rows])
                yield table([row["id"] for row in rows], vectors_nP)

        return write_store(
            workspace, tables(), kind=KIND, schema=schema(math.prod(size), "float32"), fingerprints=made_by,
            meta={"dim": math.prod(size), "image_size": list(size)},
        )  # fmt: skip


def _pixels(name: str, meta: str | None) -> Pixels:
    """Read the image of a record as it was ingested."""
    reference, again = reference_of(meta), "run `kedro run --pipelines=ingestion,embedding,validation`."
    if reference is None:
        raise StoreError(
            f"record {name}: expected a text that describes an image, which the objective reads, found none. Choose a "
            f"source with images (digits, image_folder, webdataset), or an objective without them, and {again}"
        )
    try:
        pixels = read_image(reference)
        found = digest(pixels)
    except Unusable as error:
        found = error.detail
    if found != reference["digest"]:
        raise StoreError(
            f"record {name}: expected an image with the digest {reference['digest']}, found {found}. Restore the "
            f"image, which changed after ingestion, or {again}"
        )
    return pixels


def resize(pixels: Pixels, size: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    """Convert pixels (H', W', C') to (H, W, C) float32 between 0 and 1; pixels of that size are not resampled."""
    from PIL import Image, ImageOps

    height, width, channels = size
    picture: Any = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    fitted = ImageOps.fit(picture.convert("L" if channels == 1 else "RGB"), (width, height), Image.Resampling.LANCZOS)
    return np.asarray(fitted, np.float32).reshape(size) / np.float32(255)
