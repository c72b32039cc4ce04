"""Sampling of captions and images, and likelihoods of captions, with one model of both.

In the interface `GenerativeModel` an image takes the place of a latent: a standardised vector of its pixels. A learned
null image or null caption represents an unknown condition.

B examples, L positions of the canvas, A examples of one model call, M positions whose logits are needed, V vocabulary,
P values of an image, e dimension of a caption vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.distributions import forbid_
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.images.options import ImageTextOptions
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood
from mm_ldlm.objectives.text_generation import DenoiserGeneration, refuse_untrained_lengths
from mm_ldlm.sampling import joint
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import GaussianSampler, LatentDenoiser, LatentSample
from mm_ldlm.sampling.joint import JointDenoiser, JointSample
from mm_ldlm.sampling.registry import latent_sampler


class ImageGeneration(GenerativeModel):
    """Lengths of captions, and images given captions."""

    config: ImageTextOptions

    @property
    def dim(self) -> int:
        """Number P of values of an image."""
        return self.shape.image_dim

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """See `GenerativeModel.length_log_probs`.

        Raises:
            SamplingError: the distribution was not trained.
        """
        refuse_untrained_lengths(self.config, given_latents=latents_Bd is not None)
        images_BP, null_B = self._given(latents_Bd, torch.arange(rows, device=self.device))
        return torch.log_softmax(self.model.length_logits(images_BP, null_B), dim=-1)

    def latents_given_texts(self, tokens_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        """Generate an image for each caption."""
        denoiser = LatentDenoiser(
            predict=self._image(tokens_BL, null=False),
            unconditional=self._image(tokens_BL, null=True) if self.config.trains_null_text else None,
            parameterisation=self.config.parameterisation,
            schedule=self.config.image_schedule,
        )
        sample: LatentSample = sampler.sample(denoiser, dim=self.dim, generator=generator)
        return sample

    def _image(self, tokens_BL: Tensor, *, null: bool) -> Any:
        def predict(x_BP: Tensor, t_B: Tensor, x0_BP: Tensor | None) -> Tensor:
            found: Tensor = self.model(
                tokens_BL, valid_BL=tokens_BL != self.shape.pad_id, t_text_B=torch.zeros_like(t_B), images_BP=x_BP,
                t_image_B=t_B, null_text_B=torch.ones_like(t_B, dtype=torch.bool) if null else None, heads=("image",),
            ).images_BP  # fmt: skip
            return found

        return predict

    def _given(self, images_BP: Tensor | None, rows_A: Tensor) -> tuple[Tensor, Tensor | None]:
        """Select the images of these rows (A, P); without images, mark every row for the null image."""
        if images_BP is not None:
            return images_BP[rows_A], None
        if not self.config.trains_null_image:
            raise self._missing("a null image, because it was not trained (condition_dropout, mode_weights)")
        zeros_AP = torch.zeros(len(rows_A), self.dim, device=rows_A.device)
        return zeros_AP, torch.ones_like(rows_A, dtype=torch.bool)


class ImageTextGeneration(ImageGeneration, DenoiserGeneration):
    """Captions under a discrete text process."""

    def __init__(self, model: nn.Module, shape: DataShape, process: TextProcess, config: Any) -> None:
        super().__init__(model, shape, process)
        self.config = config

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        if isinstance(sampler, GaussianSampler):
            raise SamplingError(
                f"the captions of this run are tokens, but the sampler '{sampler.kind}' is a latent sampler. Choose a "
                "text sampler, for example 'confidence'."
            )
        return super().write(canvas_BL, open_BL, latents_Bd=latents_Bd, sampler=sampler, generator=generator)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of captions given images (B, P), or without images; guidance needs a null image."""
        guidable = latents_Bd is not None and self.config.trains_null_image
        return TextDenoiser(
            logits=self._logits(latents_Bd),
            unconditional=self._logits(None) if guidable else None,
            mask_id=self.shape.mask_id,
            pad_id=self.shape.pad_id,
            vocab_size=self.shape.vocab_size,
        )

    def _logits(self, images_BP: Tensor | None) -> Any:
        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            given_AP, null_A = self._given(images_BP, rows_A)
            found: Tensor = self.model(
                tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, t_text_B=t_A, images_BP=given_AP,
                t_image_B=torch.zeros_like(t_A), null_image_B=null_A, logits_at=asked_AL, heads=("text",),
            ).logits  # fmt: skip
            return found

        return logits

    def both(self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator) -> JointSample:
        """Draw captions and images together: ancestral steps in the caption, DDIM steps in the image."""

        def predict(
            tokens_BL: Tensor, t_text_B: Tensor, x_BP: Tensor, t_image_B: Tensor, asked_BL: Tensor,
            x0_BP: Tensor | None,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            out = self.model(
                tokens_BL, valid_BL=tokens_BL != self.shape.pad_id, t_text_B=t_text_B, images_BP=x_BP,
                t_image_B=t_image_B, logits_at=asked_BL, heads=("text", "image"),
            )  # fmt: skip
            return out.logits, out.images_BP

        denoiser = JointDenoiser(
            predict=predict,
            process=self.process,
            latent_schedule=self.config.image_schedule,
            parameterisation=self.config.parameterisation,
        )
        return joint.together(
            denoiser, canvas_BL, dim=self.dim, draw=text.draw, latent=latent, generator=generator
        )  # fmt: skip


class ContinuousImageTextGeneration(ImageGeneration):
    """Captions as noised vectors: the estimate of x_0 is the mean of the token vectors under the model's distribution
    (CDCD, arXiv:2211.15089, §3.1), and the text head rounds the sampled vectors to tokens."""

    def __init__(self, model: nn.Module, shape: DataShape, config: Any) -> None:
        super().__init__(model, shape)
        self.config = config
        self.caption_dim = int(model.config.vector_dim)  # type: ignore[union-attr,arg-type]

    def default_sampler(self, *, conditional: bool) -> Any:
        return latent_sampler("ddim", steps=20)

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        raise self._missing("likelihoods of captions that are noised as vectors")

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        """Write whole captions given images, or unconditionally.

        Raises:
            SamplingError: the sampler is a text sampler, or some positions of a caption are given.
        """
        if not isinstance(sampler, GaussianSampler):
            raise SamplingError(
                f"the captions of this run are vectors, but the sampler '{sampler.kind}' unmasks tokens. Choose a "
                "latent sampler, for example 'ddim'."
            )
        valid_BL = self._all_open(canvas_BL, open_BL)
        rows_B = torch.arange(len(canvas_BL), device=canvas_BL.device)
        logits = self._logits(canvas_BL, *self._given(latents_Bd, rows_B))
        guidable = latents_Bd is not None and self.config.trains_null_image
        schedule = self.config.image_schedule
        denoiser = LatentDenoiser(
            predict=self._captions(logits),
            unconditional=self._captions(self._logits(canvas_BL, *self._given(None, rows_B))) if guidable else None,
            parameterisation="x0",
            schedule=schedule,
        )
        sample = sampler.sample(denoiser, dim=canvas_BL.shape[1] * self.caption_dim, generator=generator)
        return self._rounded(logits, sample.latents, canvas_BL, valid_BL, calls=sample.model_calls)

    def both(self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator) -> JointSample:
        """Draw captions and images together: one Gaussian diffusion over [pixels, vectors of the caption]."""
        valid_BL = self._all_open(canvas_BL, canvas_BL == self.shape.mask_id)
        kind, schedule = self.config.parameterisation, self.config.image_schedule

        def predict(z_Bd: Tensor, t_B: Tensor, x0_Bd: Tensor | None) -> Tensor:
            image_BP, caption_Bd = z_Bd.split([self.dim, z_Bd.shape[1] - self.dim], dim=1)
            out = self.model(
                canvas_BL, valid_BL=valid_BL, t_text_B=t_B, images_BP=image_BP, t_image_B=t_B,
                captions_BLe=self._unflat(caption_Bd), heads=("text", "image"),
            )  # fmt: skip
            scales = {"signal_B": schedule.signal(t_B), "noise_scale_B": schedule.noise(t_B)}
            caption0_Bd = self._expected(out.logits).flatten(1)
            return torch.cat(
                [out.images_BP, gaussian.convert(caption0_Bd, "x0", kind, x_t_Bd=caption_Bd, **scales)], dim=1
            )

        denoiser = LatentDenoiser(predict=predict, parameterisation=kind, schedule=schedule)
        dim = self.dim + canvas_BL.shape[1] * self.caption_dim
        sample = latent.sample(denoiser, dim=dim, generator=generator)
        images_BP, caption_Bd = sample.latents.split([self.dim, dim - self.dim], dim=1)
        logits = self._logits(canvas_BL, images_BP, None)
        written = self._rounded(logits, caption_Bd, canvas_BL, valid_BL, calls=sample.model_calls)
        images = LatentSample(images_BP, images_BP.unsqueeze(0), sample.model_calls)
        return JointSample(written, images, written.model_calls)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _all_open(self, canvas_BL: Tensor, open_BL: Tensor) -> Tensor:
        valid_BL = canvas_BL != self.shape.pad_id
        if not torch.equal(valid_BL, open_BL):
            raise self._missing("captions with given tokens; it writes whole captions")
        return valid_BL

    def _unflat(self, caption_Bd: Tensor) -> Tensor:
        return caption_Bd.reshape(len(caption_Bd), -1, self.caption_dim)

    def _logits(self, canvas_BL: Tensor, images_BP: Tensor, null_B: Tensor | None) -> Any:
        def logits(caption_Bd: Tensor, t_B: Tensor) -> Tensor:
            found: Tensor = self.model(
                canvas_BL, valid_BL=canvas_BL != self.shape.pad_id, t_text_B=t_B, images_BP=images_BP,
                t_image_B=torch.zeros_like(t_B), null_image_B=null_B, captions_BLe=self._unflat(caption_Bd),
                heads=("text",),
            ).logits  # fmt: skip
            return found

        return logits

    def _captions(self, logits: Any) -> Any:
        return lambda z_Bd, t_B, x0_Bd: self._expected(logits(z_Bd, t_B)).flatten(1)

    def _log_probs(self, logits_BLV: Tensor) -> Tensor:
        words_BLV = forbid_(logits_BLV.float().clone(), mask_id=self.shape.mask_id, pad_id=self.shape.pad_id)
        return words_BLV.log_softmax(-1)

    def _expected(self, logits_BLV: Tensor) -> Tensor:
        """Σ p(token) · vector, (B, L, e)."""
        vectors_Ve = self.model.unit_vectors[: self.shape.vocab_size]
        return self._log_probs(logits_BLV).exp() @ vectors_Ve

    def _rounded(
        self, logits: Any, caption_Bd: Tensor, canvas_BL: Tensor, valid_BL: Tensor, *, calls: int
    ) -> TextSample:
        """Take the most probable token of every position given the sampled vectors at t = 0, by one more call."""
        zeros_B = torch.zeros(len(canvas_BL), device=canvas_BL.device)
        best = self._log_probs(logits(caption_Bd, zeros_B)).max(dim=-1)
        return TextSample(
            tokens=torch.where(valid_BL, best.indices, canvas_BL),
            log_probs=torch.where(valid_BL, best.values, 0.0),
            steps=torch.where(valid_BL, 0, -1),
            calls_per_row=torch.full((len(canvas_BL),), calls + 1, device=canvas_BL.device),
            model_calls=calls + 1,
        )
