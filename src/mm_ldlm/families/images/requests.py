"""Images in the Python interface: images from captions, captions of images, and both together.

n texts or images, H height, W width, C channels.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core import Rows, SamplingError, Seed, check, parse_kind
from mm_ldlm.families.images.config import CAPTION_SAMPLERS
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.arguments import array_of, check_tokens, latent_sampler_of, texts_of
from mm_ldlm.inference.requests.generation import length_of
from mm_ldlm.inference.results import Texts
from mm_ldlm.inference.writer import Writer, refuse_texts_beyond_memory
from mm_ldlm.sampling.gaussian import GridSampler
from mm_ldlm.sampling.limits import Length, Steps
from mm_ldlm.sampling.registry import text_sampler

if TYPE_CHECKING:
    import pandas as pd


NORMALISER = "image_normaliser"
"""Folder of the normaliser of the pixels in a checkpoint"""
VALUES_PER_TOKEN = 4
"""Number of values of an image that count as one token in the size of a batch."""


@dataclasses.dataclass(frozen=True)
class Images:
    """Generated images with their captions."""

    pixels: npt.NDArray[np.float32] = dataclasses.field(repr=False)
    """(n, height, width, channels) between 0 and 1"""
    captions: tuple[str, ...]
    """The captions that were given, or that were generated with the images"""
    model_calls: npt.NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.captions)

    def to_frame(self) -> "pd.DataFrame":
        """Convert to a table with one row per image; the pixels are a list column, row by row."""
        import pandas as pd

        return pd.DataFrame(
            {
                "text": list(self.captions),
                "image": list(self.pixels.reshape(len(self), -1)),
                "model_calls": np.asarray(self.model_calls, dtype=np.int64),
            }
        )


class ImageWriter:
    """Images from captions, captions of images, and both together; `MMLDLM.images` makes it.

    Pixels in arguments and results lie between 0 and 1, (n, H, W, C). The `seed` and the position in the request
    determine a sample, for any batching.

    Raises:
        SamplingError: the run has no images.
    """

    def __init__(self, loaded: MMLDLM) -> None:
        self._loaded, self.model, self.capabilities = loaded, loaded.model, loaded.capabilities
        if NORMALISER not in loaded.normalisers:
            raise SamplingError(
                f"expected a run with images, found one that was trained with {self.capabilities.trained_as}. Train an "
                "objective that reads images (kedro run --env=digits)."
            )
        self.normaliser, self.size = loaded.normalisers[NORMALISER], loaded.shape.fields["images"]
        longest = loaded.max_length
        batch_tokens = max(longest, loaded.batch_tokens * longest // (longest + self.model.dim // VALUES_PER_TOKEN))
        traced = loaded.writer.traced and self.model.process is not None  # vectors of captions have no words on the way
        self._writer = Writer(loaded.writer.model, batch_tokens=batch_tokens, traced=traced)

    def draw(
        self, captions: Sequence[str] | str, *, sampler: Any = "ddim", steps: int | None = None, seed: int = 0
    ) -> Images:
        """Generate an image for each caption.

        Raises:
            SamplingError: the run cannot, or a caption is empty or too long.
        """
        listed = texts_of(captions, name="captions")
        ids = [tuple(row) for row in self._loaded.tokenizer.encode(listed)]
        return self.draw_tokens(ids, listed, sampler=sampler, steps=steps, seed=seed)

    def draw_tokens(
        self,
        ids: Sequence[Sequence[int]],
        captions: Sequence[str],
        *,
        sampler: Any = "ddim",
        steps: int | None = None,
        seed: int = 0,
    ) -> Images:
        """Generate an image for each tokenised caption (of 1..max_length ids); see `draw`."""
        self.capabilities.require("caption_to_image")
        ids = check_tokens(ids, captions, shape=self.model.shape)
        seed, config = check(seed, Seed, name="seed"), latent_sampler_of(sampler, steps)
        if config.draws > 1:
            raise SamplingError(
                f"sampler: expected draws 1, found {config.draws}: a mean of images is not a sample. Set draws to 1."
            )
        self._refuse_size(len(ids))
        draws_KnP, calls = self._writer.draw(ids, sampler=config, seed=seed)
        return Images(self._pixels(draws_KnP[0].cpu().numpy()), tuple(captions), calls)

    def caption(
        self,
        images: npt.ArrayLike,
        *,
        sampler: Any = None,
        steps: int | None = None,
        length: Length = "argmax",
        seed: int = 0,
    ) -> Texts:
        """Write a caption of each image (n, H, W, C).

        `sampler` is a text sampler, or a latent sampler for captions that are noised as vectors; None is the model's
        default.

        Raises:
            SamplingError: the run cannot, or the images have another size or values outside 0..1.
        """
        self.capabilities.require("image_to_caption")
        seed, steps = check(seed, Seed, name="seed"), check(steps, Steps | None, name="steps")
        length = length_of(self._loaded, length, "image_to_caption", sampler=None)
        vectors_nP = self._standardised(images)
        self._refuse_size(len(vectors_nP))
        config = self.model.default_sampler(conditional=True) if sampler is None else sampler
        config = parse_kind(CAPTION_SAMPLERS, {"kind": config} if isinstance(config, str) else config, at="sampler")
        config = config if steps is None else config.override(steps=steps)
        if isinstance(config, GridSampler) is not (self.model.process is None):
            vectors = self.model.process is None
            fitting = "latent sampler, such as 'ddim'" if vectors else "text sampler, such as 'confidence'"
            raise SamplingError(f"sampler: expected a {fitting}, for the captions of this run, found '{config.kind}'.")
        lengths = self._writer.lengths(length, vectors_nP, rows=len(vectors_nP), seed=seed)
        written = self._writer.write(self._writer.masks(lengths), latents_nd=vectors_nP, sampler=config, seed=seed)
        return self._loaded.texts(written, [None] * len(vectors_nP), None)

    def generate(self, n: int, *, steps: int = 50, length: Length = "sample", seed: int = 0) -> Images:
        """Generate `n` images and their captions together from noise, in `steps` model calls."""
        self.capabilities.require("image_text")
        n, seed, steps = check(n, Rows, name="n"), check(seed, Seed, name="seed"), check(steps, Steps, name="steps")
        length = length_of(self._loaded, length, "image_text", sampler=None)
        self._refuse_size(n)
        text, image = text_sampler("ancestral", steps=steps), latent_sampler_of("ddim", steps)
        written = self._writer.generate(n, "together", text, image, length, seed)
        captions = tuple(self._loaded.tokenizer.decode_batch(written.tokens))
        return Images(self._pixels(written.latents_nd), captions, written.model_calls)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _refuse_size(self, count: int) -> None:
        refuse_texts_beyond_memory(count, tokens=self._loaded.max_length, numbers=3 * self.model.dim)

    def _pixels(self, vectors_nP: Any) -> npt.NDArray[np.float32]:
        """Convert standardised vectors to pixels; values that a sampler drew outside 0..1 are clipped."""
        raw_nP = self.normaliser.invert(vectors_nP)
        return np.clip(raw_nP, 0.0, 1.0).astype(np.float32).reshape(-1, *self.size)

    def _standardised(self, images: npt.ArrayLike) -> torch.Tensor:
        pixels = array_of(images, name="images").astype(np.float32)
        if pixels.ndim != 4 or pixels.shape[1:] != self.size or not len(pixels):
            raise SamplingError(
                f"images: expected the shape (n, {', '.join(map(str, self.size))}), as in training, with n at least 1, "
                f"found {pixels.shape}. Resize them, for example by mm_ldlm.families.images.store.resize."
            )
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise SamplingError(
                f"images: expected pixels between 0 and 1, found values from {pixels.min():g} to {pixels.max():g}. "
                "Divide grey levels of 8 bits by 255."
            )
        vectors_nP = self.normaliser.standardise(pixels.reshape(len(pixels), -1))
        return torch.from_numpy(np.asarray(vectors_nP, np.float32)).to(self.model.device)


images = property(ImageWriter)
"""Request `MMLDLM.images`"""
