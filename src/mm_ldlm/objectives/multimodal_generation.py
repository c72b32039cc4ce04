"""Sampling and scoring with a model of text and latent.

An unknown condition is represented as in training: by the learned null embedding if training dropped the condition,
otherwise at t = 1 by pure noise (latent) or by the prior of the text process (text). The mode `unconditional` trains
the model at t = 1 (UniDiffuser, arXiv:2303.06555).

B examples, L positions of the canvas, A examples of one model call, M positions whose logits are needed,
d latent dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.multimodal_options import MultimodalOptions
from mm_ldlm.objectives.text_generation import DenoiserGeneration, refuse_untrained_lengths
from mm_ldlm.sampling import joint
from mm_ldlm.sampling.denoising import TextDenoiser
from mm_ldlm.sampling.gaussian import LatentDenoiser, LatentSample
from mm_ldlm.sampling.joint import JointDenoiser, JointSample


class MultimodalGeneration(DenoiserGeneration):
    """Sampling of texts and latents, and likelihoods of texts, with one model of both modalities."""

    def __init__(self, model: nn.Module, shape: DataShape, config: MultimodalOptions) -> None:
        process = config.process.build(vocab_size=shape.vocab_size, pad_id=shape.pad_id, mask_id=shape.mask_id)
        super().__init__(model, shape, process)
        self.config = config
        self.latents_need_lengths = not config.trains_null_text

    # -- texts --------------------------------------------------------------------------------------------------------

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        """See `GenerativeModel.length_log_probs`.

        Raises:
            SamplingError: the distribution was not trained.
        """
        refuse_untrained_lengths(self.config, given_latents=latents_Bd is not None)
        zeros_B = torch.zeros(rows, device=self.device)
        out = self.model(
            torch.full((rows, 1), self.shape.mask_id, device=self.device),
            valid_BL=None,
            t_text_B=zeros_B,
            latents_Bd=zeros_B.new_zeros(rows, self.dim) if latents_Bd is None else latents_Bd,
            t_latent_B=zeros_B,
            null_latent_B=torch.full((rows,), latents_Bd is None, device=self.device),
            heads=("length",),
        )
        return torch.log_softmax(out.length_logits_BN.float(), dim=-1)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        """Make the denoiser of texts given latents (B, d), or without latents."""
        noise_Bd = None
        if latents_Bd is None and not self.config.trains_null_latent:
            noise_Bd = generator.fork("unknown latent").normal(self.dim)
        given = latents_Bd is not None
        guidable = given and self.config.trains_null_latent
        return TextDenoiser(
            logits=self._text(latents_Bd, noise_Bd),
            unconditional=self._text(None, None) if guidable else None,
            mask_id=self.shape.mask_id,
            pad_id=self.shape.pad_id,
            vocab_size=self.shape.vocab_size,
        )

    def _text(self, latents_Bd: Tensor | None, noise_Bd: Tensor | None) -> Any:
        null = latents_Bd is None and self.config.trains_null_latent
        t_latent = 1.0 if latents_Bd is None and not null else 0.0
        source_Bd = latents_Bd if latents_Bd is not None else noise_Bd

        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            given_Ad = t_A.new_zeros(len(rows_A), self.dim) if null or source_Bd is None else source_Bd[rows_A]
            found: Tensor = self.model(
                tokens_AL,
                valid_BL=tokens_AL != self.shape.pad_id,
                t_text_B=t_A,
                latents_Bd=given_Ad,
                t_latent_B=torch.full_like(t_A, t_latent),
                null_latent_B=torch.full_like(rows_A, null, dtype=torch.bool) if null else None,
                logits_at=asked_AL,
                heads=("text",),
            ).logits_BLV
            return found

        return logits

    # -- latents ------------------------------------------------------------------------------------------------------

    def latents_given_texts(self, tokens_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        unconditional = self._latent(tokens_BL, t_text=0.0, null=True) if self.config.trains_null_text else None
        denoiser = self._latent_denoiser(self._latent(tokens_BL, t_text=0.0), unconditional)
        sample: LatentSample = sampler.sample(denoiser, dim=self.dim, generator=generator)
        return sample

    def latents_given_lengths(self, canvas_BL: Tensor, *, sampler: Any, generator: RowGenerator) -> LatentSample:
        """Draw latents of unknown texts; a learned null text replaces the texts, and the lengths are then unused."""
        if self.config.trains_null_text:
            predict = self._latent(canvas_BL[:, :1], t_text=0.0, null=True)
        else:
            open_BL = canvas_BL != self.shape.pad_id
            predict = self._latent(self.process.prior(canvas_BL, open_BL, generator.fork("prior")), t_text=1.0)
        sample: LatentSample = sampler.sample(self._latent_denoiser(predict), dim=self.dim, generator=generator)
        return sample

    def both(self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator) -> JointSample:
        return joint.together(
            self._joint_denoiser(), canvas_BL, dim=self.dim, draw=text.draw, latent=latent, generator=generator
        )

    def _latent_denoiser(self, predict: Any, unconditional: Any = None) -> LatentDenoiser:
        return LatentDenoiser(
            predict=predict,
            unconditional=unconditional,
            parameterisation=self.config.parameterisation,
            schedule=self.config.latent_schedule,
            self_condition=self.config.self_condition,
        )

    def _latent(self, tokens_BL: Tensor, *, t_text: float, null: bool = False) -> Any:
        def predict(z_Bd: Tensor, t_B: Tensor, x0_Bd: Tensor | None) -> Tensor:
            found: Tensor = self.model(
                tokens_BL,
                valid_BL=tokens_BL != self.shape.pad_id,
                t_text_B=torch.full_like(t_B, t_text),
                latents_Bd=z_Bd,
                t_latent_B=t_B,
                null_text_B=torch.ones_like(t_B, dtype=torch.bool) if null else None,
                self_condition_Bd=x0_Bd,
                heads=("latent",),
            ).latent_Bd
            return found

        return predict

    def _joint_denoiser(self) -> JointDenoiser:
        def predict(
            tokens_BL: Tensor, t_text_B: Tensor, z_Bd: Tensor, t_latent_B: Tensor, asked_BL: Tensor,
            x0_Bd: Tensor | None,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            out = self.model(
                tokens_BL,
                valid_BL=tokens_BL != self.shape.pad_id,
                t_text_B=t_text_B,
                latents_Bd=z_Bd,
                t_latent_B=t_latent_B,
                self_condition_Bd=x0_Bd,
                logits_at=asked_BL,
                heads=("text", "latent"),
            )
            return out.logits_BLV, out.latent_Bd

        return JointDenoiser(
            predict=predict,
            process=self.process,
            latent_schedule=self.config.latent_schedule,
            parameterisation=self.config.parameterisation,
            self_condition=self.config.self_condition,
        )
