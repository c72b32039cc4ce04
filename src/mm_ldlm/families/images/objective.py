"""Diffusion of a caption and of its image, each with its own timestep; captions are tokens, or vectors of tokens.

Images follow a Gaussian process over standardised pixels. Kind `image_text`: captions follow a discrete process
(masking). Kind `image_text_continuous`: the vectors of the tokens follow the Gaussian process of the images, and the
text head rounds them to tokens (CDCD, arXiv:2211.15089).

B examples, L positions, M scored positions, V vocabulary, e dimension of a caption vector.
"""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mm_ldlm.core import NonNegativeFloat, PositiveFloat, config, refuse_if
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.distributions import forbid_, token_loss
from mm_ldlm.diffusion.masked import AbsorbingConfig
from mm_ldlm.diffusion.process import TEXT_PROCESSES
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GAUSSIAN_SCHEDULES, CosineLatents
from mm_ldlm.diffusion.times import antithetic
from mm_ldlm.families.images.model import TextAndImageModel, TextVectorsAndImageModel
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.gaussian_generation import ModalityGeneration
from mm_ldlm.objectives.multimodal import require_no_stores
from mm_ldlm.objectives.text_and_modality import (
    GaussianModality,
    ModalityObjective,
    ModalityOptions,
    Roles,
    positive_weights,
)
from mm_ldlm.objectives.text_loss import NoisyTexts, ScoredTokens, sum_tokens
from mm_ldlm.sampling.denoising import TextDenoiser, TextSample
from mm_ldlm.sampling.gaussian import LatentDenoiser, LatentSample
from mm_ldlm.sampling.registry import latent_sampler


@config
class ImageModeWeights:
    """Relative frequencies at which training draws the modes; a mode of weight 0 is not trained."""

    caption_to_image: NonNegativeFloat = 1.0
    image_to_caption: NonNegativeFloat = 1.0
    joint: NonNegativeFloat = 1.0


@config
class ImageTextOptions(ModalityOptions):
    """Modes, noise of the images and loss weights.

    Attributes:
        mode_weights: relative frequencies of the modes. In `caption_to_image` the caption is clean and the image is
            noised, in `image_to_caption` the reverse; in `joint` both are noised, each at its own timestep.
        image_schedule: Gaussian noise schedule of the images.
        image_loss: weight of the image loss as a function of the SNR.
        image_weight: factor of the image loss in the total.
    """

    modality: ClassVar[str] = "image"
    field: ClassVar[str] = "images"
    roles: ClassVar[Roles] = Roles(text="image_to_caption", value="caption_to_image", both="joint")

    mode_weights: ImageModeWeights = dataclasses.field(default_factory=ImageModeWeights)
    image_schedule: Annotated[Any, GAUSSIAN_SCHEDULES] = dataclasses.field(default_factory=CosineLatents)
    image_loss: Literal["min_snr", "uniform"] = "min_snr"
    image_weight: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_if(not self.modes, "expected at least one mode of weight above 0, found none", "mode_weights")

    @property
    def frequencies(self) -> dict[str, float]:
        return positive_weights(self.mode_weights)

    def image_capabilities(self, *, uses: frozenset[str] = frozenset(), **more: Any) -> Capabilities:
        """Make the capabilities that follow from the modes, with further `uses` and fields of `Capabilities`."""
        given = self.condition_dropout < 1  # a mode whose condition is always dropped is never trained with it
        of_modes = {
            "caption_to_image": given and "caption_to_image" in self.modes,
            "image_to_caption": given and "image_to_caption" in self.modes,
            "image_text": "joint" in self.modes,
        }
        return Capabilities(
            uses=uses | {use for use, able in of_modes.items() if able},
            fields=self.fields,
            untrained_lengths={
                "image_to_caption": untrained_lengths(self, given=True),
                "image_text": untrained_lengths(self, given=False),
            },
            trained_as=f"objective {self.kind}, modes {', '.join(self.modes)}",
            **more,
        )


@config
class ImageTextConfig(ImageTextOptions):
    """Kind `image_text`: captions under a discrete process, images under a Gaussian one.

    Attributes:
        process: text process that corrupts the tokens of the captions.
    """

    kind: str = "image_text"
    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=AbsorbingConfig)

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        return int(self.process.build(shape).noise_ids)

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "process": self.process.kind}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextAndImageModel)
        require_no_stores(self)
        null = self.trains_null_value
        texts = {"infill": null, "score": null and untrained_lengths(self, given=False) is None}
        return self.image_capabilities(
            uses=frozenset(use for use, able in texts.items() if able),
            process=self.process,
            guided=frozenset({"image_to_caption"} if null else ()),
        )

    def build(self, shape: DataShape, **stores: Tensor) -> ModalityObjective:
        return ModalityObjective(self, shape, process=self.process.build(shape))


@config
class ContinuousImageTextConfig(ImageTextOptions):
    """Kind `image_text_continuous`: vectors of caption tokens and images under one Gaussian process."""

    kind: str = "image_text_continuous"

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextVectorsAndImageModel)
        return self.image_capabilities()

    def build(self, shape: DataShape, **stores: Tensor) -> "ContinuousImageTextObjective":
        return ContinuousImageTextObjective(self, shape, process=None)


class ContinuousImageTextObjective(ModalityObjective):
    """Losses with captions as noised vectors: the cross-entropy of every token given the noised vectors."""

    def expected_first_loss(self) -> dict[str, float]:
        """Return log V per token, V without [MASK] and [PAD]: the text head starts at 0."""
        return {"text_nll": math.log(len(self.shape.word_ids))}

    def generative_model(self, model: nn.Module) -> "ContinuousImageTextGeneration":
        return ContinuousImageTextGeneration(model, self.shape, self.config, modality=self.modality)

    def corrupt_texts(self, model: Any, batch: Batch, generator: RowGenerator) -> tuple[NoisyTexts, dict[str, Any]]:
        """Draw the noise of the vectors; the model adds it to signal · vector, so that the vectors are trained too."""
        # In the order of the batch: the order of `modality.value_times` would be that of the image's times.
        u = generator.fork("text_time").shared_uniform()
        t_B = antithetic(u, batch.position_B, batch.global_size, self.config.t_min)
        B, L = batch.tokens_BL.shape
        dim = int(model.config.vector_dim)
        noise_BLe = generator.fork("text_noise").normal(L * dim, dtype=torch.float32).view(B, L, dim)
        signal_B, scale_B = self.modality.schedule.scales(t_B)
        inputs = {"captions_BLe": scale_B[:, None, None] * noise_BLe, "signal_B": signal_B}
        return NoisyTexts(batch.tokens_BL, t_B, batch.valid_BL), inputs

    def text_losses(self, logits: Tensor, batch: Batch, noisy: NoisyTexts) -> Losses:
        scored_BL = noisy.scored_BL
        logits_MV = logits if logits.dim() == 2 else logits[scored_BL]
        targets_M, t_M = batch.tokens_BL[scored_BL], noisy.t_B[scored_BL.nonzero()[:, 0]]
        found = token_loss(logits_MV, targets_M, mask_id=self.shape.mask_id, pad_id=self.shape.pad_id)
        scored_M = torch.ones_like(targets_M, dtype=torch.bool)
        return sum_tokens(ScoredTokens(found, targets_M, t_M, scored_M), batch, z_loss=self.config.z_loss > 0)


# -- sampling of captions as noised vectors, of images, and of both ----------------------------------------------------


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
        """Write complete captions given images, or unconditionally; captions with given tokens are refused."""
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

    def both(
        self, canvas_BL: Tensor, *, text: Any, latent: Any, generator: RowGenerator
    ) -> tuple[TextSample, LatentSample]:
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
        return written, images

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _all_open(self, canvas_BL: Tensor, open_BL: Tensor) -> Tensor:
        valid_BL = canvas_BL != self.shape.pad_id
        if not torch.equal(valid_BL, open_BL):
            raise self._missing("captions with given tokens; it writes complete captions")
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
