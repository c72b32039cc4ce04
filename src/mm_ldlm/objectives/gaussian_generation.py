"""Sampling and scoring with a model of a text and one Gaussian modality.

An unknown condition is represented as in training: by the learned null embedding if training dropped the condition,
otherwise at t = 1 by pure noise (modality) or by the prior of the text process (text). Modes that noise both train the
model at t = 1 (UniDiffuser, arXiv:2303.06555).

B examples, L positions of the canvas, A examples of one model call, M positions whose logits are needed,
d dimension of the modality.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.generation import DenoiserGeneration
from mm_ldlm.sampling.denoising import Canvas, Logits, TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import LatentDenoiser, LatentSample, Predict
from mm_ldlm.sampling.joint import together


class ModalityGeneration(DenoiserGeneration):
    """Sampling of texts and of the modality, and likelihoods of texts, with one model of both."""

    lengths_given_latents = True

    def __init__(
        self, model: nn.Module, shape: DataShape, process: TextProcess, config: Any, *, modality: Any
    ) -> None:  # fmt: skip
        """`config` is a `ModalityOptions`, and `modality` the `GaussianModality` of the objective."""
        super().__init__(model, shape, process, config)
        self.modality, self.field = modality, modality.field
        self.latents_need_lengths = not config.trains_null_text

    # -- texts --------------------------------------------------------------------------------------------------------

    def length_logits(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        null_B = torch.full((rows,), latents_Bd is None, device=self.device)
        latents_Bd = torch.zeros(rows, self.dim, device=self.device) if latents_Bd is None else latents_Bd
        return self.model.length_logits(latents_Bd, null_B)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of texts given latents (B, d), or without latents; guidance needs a null latent."""
        null = self._text(None) if self.config.trains_null_value else None
        if latents_Bd is not None:
            return TextDenoiser(logits=self._text(latents_Bd), unconditional=null)
        noise_Bd = generator.fork("unknown latent").normal(self.dim)
        return TextDenoiser(logits=null or self._text(noise_Bd, t_latent=1.0))

    def _text(self, latents_Bd: Tensor | None, *, t_latent: float = 0.0) -> Logits:
        """Make the logits of texts given latents at a time, or given the null latent."""
        null = latents_Bd is None

        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            return self.model(
                tokens_AL,
                valid_BL=tokens_AL != self.shape.pad_id,
                t_text_B=t_A,
                latents_Bd=t_A.new_zeros(len(rows_A), self.dim) if latents_Bd is None else latents_Bd[rows_A],
                t_latent_B=torch.full_like(t_A, t_latent),
                null_latent_B=torch.ones_like(rows_A, dtype=torch.bool) if null else None,
                logits_at=asked_AL,
                heads=("text",),
            ).logits

        return logits

    # -- the modality -------------------------------------------------------------------------------------------------

    def latents_given_texts(self, tokens_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        unconditional = self._latent(tokens_BL, t_text=0.0, null=True) if self.config.trains_null_text else None
        denoiser = self._latent_denoiser(self._latent(tokens_BL, t_text=0.0), unconditional)
        return sampler.sample(denoiser, dim=self.dim, generator=generator)

    def latents_given_lengths(self, canvas_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        """Draw latents of unknown texts; a learned null text replaces the texts, and the lengths are then unused."""
        if self.config.trains_null_text:
            predict = self._latent(canvas_BL[:, :1], t_text=0.0, null=True)
        else:
            open_BL = canvas_BL != self.shape.pad_id
            predict = self._latent(self.process.prior(canvas_BL, open_BL, generator.fork("prior")), t_text=1.0)
        return sampler.sample(self._latent_denoiser(predict), dim=self.dim, generator=generator)

    def both(
        self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator
    ) -> tuple[TextSample, LatentSample]:
        def predict(
            tokens_BL: Tensor, z_Bd: Tensor, t_B: Tensor, asked_BL: Tensor, x0_Bd: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            out = self.model(
                tokens_BL,
                valid_BL=tokens_BL != self.shape.pad_id,
                t_text_B=t_B,
                latents_Bd=z_Bd,
                t_latent_B=t_B,
                self_condition_Bd=x0_Bd,
                logits_at=asked_BL,
                heads=("text", "latent"),
            )
            return out.logits, out.latent_Bd

        canvas = Canvas(
            denoise=self._latent_denoiser(predict), process=self.process, tokens=canvas_BL, generator=generator,
            observe=text.observe,
        )  # fmt: skip
        return together(canvas, dim=self.dim, draw=text, latent=latent)

    def _latent_denoiser(self, predict: Any, unconditional: Predict | None = None) -> LatentDenoiser:
        return LatentDenoiser(
            predict=predict,
            unconditional=unconditional,
            parameterisation=self.modality.parameterisation,
            schedule=self.modality.schedule,
            self_condition=self.config.self_condition,
        )

    def _latent(self, tokens_BL: Tensor, *, t_text: float, null: bool = False) -> Predict:
        def predict(z_Bd: Tensor, t_B: Tensor, x0_Bd: Tensor | None) -> Tensor:
            return self.model(
                tokens_BL,
                valid_BL=tokens_BL != self.shape.pad_id,
                t_text_B=torch.full_like(t_B, t_text),
                latents_Bd=z_Bd,
                t_latent_B=t_B,
                null_text_B=torch.ones_like(t_B, dtype=torch.bool) if null else None,
                self_condition_Bd=x0_Bd,
                heads=("latent",),
            ).latent_Bd

        return predict
