"""Sampling of captions as noised vectors, of images, and of both, with one model.

B examples, L positions of the canvas, V vocabulary, P values of an image, e dimension of a caption vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.distributions import forbid_
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.modality import GaussianModality
from mm_ldlm.objectives.modality_generation import ModalityGeneration
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import LatentDenoiser, LatentSample
from mm_ldlm.sampling.joint import JointSample
from mm_ldlm.sampling.registry import latent_sampler


class ContinuousImageTextGeneration(ModalityGeneration):
    """Captions as noised vectors: the estimate of x_0 is the mean of the token vectors under the model's distribution
    (CDCD, arXiv:2211.15089, §3.1), and the text head rounds the sampled vectors to tokens."""

    process = None  # type: ignore[assignment]

    def __init__(self, model: nn.Module, shape: DataShape, config: Any, *, modality: GaussianModality) -> None:
        super().__init__(model, shape, None, config, modality=modality)  # type: ignore[arg-type]
        self.caption_dim = int(model.config.vector_dim)  # type: ignore[union-attr,arg-type]

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        raise self._missing("captions as tokens")

    def default_sampler(self, *, conditional: bool) -> Any:
        return latent_sampler("ddim", steps=20)

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        """Write whole captions given images, or unconditionally; captions with given tokens are refused."""
        valid_BL = self._all_open(canvas_BL, open_BL)
        logits = self._logits(canvas_BL, latents_Bd)
        guidable = latents_Bd is not None and self.config.trains_null_value
        denoiser = LatentDenoiser(
            predict=self._captions(logits),
            unconditional=self._captions(self._logits(canvas_BL, None)) if guidable else None,
            parameterisation="x0",
            schedule=self.modality.schedule,
        )
        sample = sampler.sample(denoiser, dim=canvas_BL.shape[1] * self.caption_dim, generator=generator)
        return self._rounded(logits, sample.latents, canvas_BL, valid_BL, calls=sample.model_calls)

    def both(self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator) -> JointSample:
        """Draw captions and images together: one Gaussian diffusion over [pixels, vectors of the caption]."""
        valid_BL = self._all_open(canvas_BL, canvas_BL == self.shape.mask_id)
        kind, schedule = self.modality.parameterisation, self.modality.schedule

        def predict(z_Bd: Tensor, t_B: Tensor, x0_Bd: Tensor | None) -> Tensor:
            image_BP, caption_Bd = z_Bd.split([self.dim, z_Bd.shape[1] - self.dim], dim=1)
            out = self.model(
                canvas_BL, valid_BL=valid_BL, t_text_B=t_B, latents_Bd=image_BP, t_latent_B=t_B,
                captions_BLe=self._unflat(caption_Bd), heads=("text", "latent"),
            )  # fmt: skip
            caption0_Bd = self._expected(out.logits).flatten(1)
            caption_Bd = gaussian.convert(caption0_Bd, "x0", kind, caption_Bd, schedule.scales(t_B))
            return torch.cat([out.latent_Bd, caption_Bd], dim=1)

        denoiser = LatentDenoiser(predict=predict, parameterisation=kind, schedule=schedule)
        dim = self.dim + canvas_BL.shape[1] * self.caption_dim
        sample = latent.sample(denoiser, dim=dim, generator=generator)
        images_BP, caption_Bd = sample.latents.split([self.dim, dim - self.dim], dim=1)
        logits = self._logits(canvas_BL, images_BP)
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

    def _logits(self, canvas_BL: Tensor, images_BP: Tensor | None) -> Any:
        """Make the logits of captions as noised vectors, given images or the null image."""
        null_B = None
        if images_BP is None:
            if not self.config.trains_null_value:
                raise self._missing("a null image, because it was not trained (condition_dropout, mode_weights)")
            null_B = torch.ones(len(canvas_BL), dtype=torch.bool, device=canvas_BL.device)
            images_BP = torch.zeros(len(canvas_BL), self.dim, device=canvas_BL.device)

        def logits(caption_Bd: Tensor, t_B: Tensor) -> Tensor:
            return self.model(
                canvas_BL, valid_BL=canvas_BL != self.shape.pad_id, t_text_B=t_B, latents_Bd=images_BP,
                t_latent_B=torch.zeros_like(t_B), null_latent_B=null_B, captions_BLe=self._unflat(caption_Bd),
                heads=("text",),
            ).logits  # fmt: skip

        return logits

    def _captions(self, logits: Any) -> Any:
        return lambda z_Bd, t_B, x0_Bd: self._expected(logits(z_Bd, t_B)).flatten(1)

    def _log_probs(self, logits_BLV: Tensor) -> Tensor:
        words_BLV = forbid_(logits_BLV.float().clone(), mask_id=self.shape.mask_id, pad_id=self.shape.pad_id)
        return words_BLV.log_softmax(-1)

    def _expected(self, logits_BLV: Tensor) -> Tensor:
        """Σ p(token) · vector, (B, L, e)."""
        vectors_Ve = self.model.text_embedding.unit_vectors[: self.shape.vocab_size]
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
