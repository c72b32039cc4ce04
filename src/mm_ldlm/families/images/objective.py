"""Diffusion of a caption and of its image, each with its own timestep; captions are tokens, or vectors of tokens.

Images follow a Gaussian process over standardised pixels. Kind `image_text`: captions follow a discrete process
(masking). Kind `image_text_continuous`: the vectors of the tokens follow the Gaussian process of the images, and the
text head rounds them to tokens (CDCD, arXiv:2211.15089). A timestep of 0 means that a modality is given
(UniDiffuser, arXiv:2303.06555).

B examples, L positions, M scored positions, V vocabulary, P values of an image, e dimension of a caption vector.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from mm_ldlm.core.config import config
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion import gaussian
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.distributions import forbid_
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.diffusion.timesteps import antithetic
from mm_ldlm.families.images.generation import ContinuousImageTextGeneration, ImageTextGeneration
from mm_ldlm.families.images.options import ImageTextOptions
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Unit, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, Use
from mm_ldlm.objectives.condition_dropout import dropped
from mm_ldlm.objectives.gaussian_loss import gaussian_loss
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.objectives.text_generation import untrained_lengths
from mm_ldlm.objectives.text_loss import by_time, length_loss, positions_of_logits, text_losses
from mm_ldlm.objectives.training_times import latent_times, shared_draw, text_times


@config
class ImageTextConfig(ImageTextOptions):
    """Kind `image_text`: captions under a discrete process, images under a Gaussian one.

    Attributes:
        process: text process that corrupts the tokens of the captions.
    """

    kind: str = "image_text"
    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=AbsorbingConfig)

    def noise_ids(self, shape: DataShape) -> int:
        return int(
            self.process.build(vocab_size=shape.vocab_size, pad_id=shape.pad_id, mask_id=shape.mask_id).noise_ids
        )

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "process": self.process.kind}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, "text_and_image_denoiser")
        if self.process.stores:
            raise ConfigurationError(
                f"parameter 'objective.process.kind' is {self.process.kind!r}, which is made from the stores "
                f"{', '.join(self.process.stores)}; the objective 'image_text' has processes without stores only, such "
                "as 'absorbing'. Choose one of them."
            )
        texts: set[Use] = {"infill", "score"} if self.trains_null_image else set()
        if untrained_lengths(self, given_latents=False) is not None:
            texts -= {"score"}
        return Capabilities(
            uses=self.image_uses | texts,
            likelihood="bound",
            untrained_lengths=self.untrained_lengths,
            reads_images=True,
            process=self.process.traits,
            guided=frozenset({"image_to_caption"} if self.trains_null_image else ()),
            trained_as=f"objective image_text, modes {', '.join(self.modes)}",
        )

    def build(self, shape: DataShape, *, fixed_shapes: bool = False) -> ImageTextObjective:
        return ImageTextObjective(self, shape, fixed_shapes=fixed_shapes)


@config
class ContinuousImageTextConfig(ImageTextOptions):
    """Kind `image_text_continuous`: vectors of caption tokens and images under one Gaussian process."""

    kind: str = "image_text_continuous"

    def noise_ids(self, shape: DataShape) -> int:
        return 0

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, "text_vectors_and_image_denoiser")
        return Capabilities(
            uses=self.image_uses,
            untrained_lengths=self.untrained_lengths,
            reads_images=True,
            trained_as=f"objective image_text_continuous, modes {', '.join(self.modes)}",
        )

    def build(self, shape: DataShape, *, fixed_shapes: bool = False) -> ContinuousImageTextObjective:
        return ContinuousImageTextObjective(self, shape, fixed_shapes=fixed_shapes)


class NoisyCaptions(NamedTuple):
    """Corrupted captions of a batch."""

    tokens_BL: Tensor
    t_B: Tensor
    scored_BL: Tensor
    inputs: dict[str, Tensor]
    """further arguments of the model"""


class ImageTextObjective:
    """Losses of caption, image and length for one mode per step (`objectives.base.Objective`)."""

    config: Any

    def __init__(self, config: ImageTextOptions, shape: DataShape, *, fixed_shapes: bool = False) -> None:
        self.config, self.shape, self.fixed_shapes = config, shape, fixed_shapes
        self.fields = config.fields
        self.weights: dict[str, float] = {
            "text_loss": config.text_weight, "image_loss": config.image_weight, "length_loss": config.length_weight,
        }  # fmt: skip
        self.units: dict[str, Unit] = {"text_loss": "tokens", "image_loss": "examples", "length_loss": "examples"}
        self.kinds: tuple[str, ...] = config.modes
        weights = [float(getattr(config.mode_weights, name)) for name in self.kinds]
        self._edges = [(name, sum(weights[: i + 1]) / sum(weights)) for i, name in enumerate(self.kinds)]
        self.make_process()

    def make_process(self) -> None:
        """Make the text process."""
        ids = {"vocab_size": self.shape.vocab_size, "pad_id": self.shape.pad_id, "mask_id": self.shape.mask_id}
        self.process = self.config.process.build(**ids)

    # -- queries of the training loop ---------------------------------------------------------------------------------

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the mode of a step, the same on all ranks and in all micro-batches."""
        if len(self.kinds) == 1:
            return self.kinds[0]
        drawn = shared_draw(generator, "mode")
        return next((name for name, edge in self._edges if drawn < edge), self.kinds[-1])

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts that the only mode of a run does not train."""
        if self.kinds == ("caption_to_image",):
            return frozenset({"text_head", "length_head", "null_image"})
        return frozenset({"image_head", "null_text"}) if self.kinds == ("image_to_caption",) else frozenset()

    @property
    def idle_parts(self) -> frozenset[str]:
        return frozenset({"length_head"}) if self.config.length_weight == 0 else frozenset()

    def expected_first_loss(self) -> dict[str, float]:
        """Return the NLL of equal logits, because the text head starts at 0."""
        found = self.process.initial_nll()
        return {} if found is None else {"text_nll": found}

    def generative_model(self, model: nn.Module) -> GenerativeModel:
        return ImageTextGeneration(model, self.shape, self.process, self.config)

    # -- the losses of a micro-batch ----------------------------------------------------------------------------------

    def __call__(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        noise_text, noise_image = kind != "caption_to_image", kind != "image_to_caption"
        dropped_B = dropped(generator, self.config.condition_dropout)
        zeros_B = torch.zeros(len(batch.examples_B), device=batch.examples_B.device)

        captions = self.corrupt(model, batch, generator) if noise_text else None
        tokens_BL, t_text_B = (batch.tokens_BL, zeros_B) if captions is None else (captions.tokens_BL, captions.t_B)

        x0_BP, t_image_B = batch.fields["images"], zeros_B
        x_t_BP, noise_BP = x0_BP, torch.zeros_like(x0_BP)
        if noise_image:
            t_image_B = latent_times(batch, generator.fork("image_time"), t_min=self.config.t_min)
            noise_BP = generator.fork("image_noise").normal(x0_BP.shape[1], dtype=torch.float32)
            signal_B, scale_B = (
                self.config.image_schedule.signal(t_image_B),
                self.config.image_schedule.noise(t_image_B),
            )
            x_t_BP = gaussian.add_noise(x0_BP, noise_BP, signal_B=signal_B, noise_scale_B=scale_B)

        inputs: dict[str, Any] = {} if captions is None else dict(captions.inputs)
        if kind == "image_to_caption":
            inputs["null_image_B"] = dropped_B
        elif kind == "caption_to_image":
            inputs["null_text_B"] = dropped_B
        # The length head reads the clean image, whatever the trunk reads. Where the condition is dropped, the head
        # learns the marginal distribution of lengths.
        want_length = noise_text and self.config.length_weight > 0
        wanted = {"text": noise_text, "image": noise_image, "length": want_length}
        logits_at = (
            None if captions is None else positions_of_logits(captions.scored_BL, fixed_shapes=self.fixed_shapes)
        )
        out = model(
            tokens_BL, valid_BL=batch.valid_BL, t_text_B=t_text_B, images_BP=x_t_BP, t_image_B=t_image_B,
            length_images_BP=x0_BP, null_length_B=dropped_B, logits_at=logits_at,
            heads=tuple(name for name, here in wanted.items() if here), **inputs,
        )  # fmt: skip

        losses: Losses = {}
        if captions is not None:
            losses |= self.caption_losses(out.logits, batch, captions, gathered=logits_at is not None)
        if noise_image:
            losses |= gaussian_loss(
                out.images_BP, x0_BP, x_t_BP, noise_BP, t_image_B, batch.real_B,
                schedule=self.config.image_schedule, parameterisation=self.config.parameterisation,
                weight=self.config.image_loss, gamma=self.config.min_snr_gamma, name="image",
            )  # fmt: skip
        if want_length:
            losses |= length_loss(out.length_logits_BN, batch)
        return losses

    def corrupt(self, model: nn.Module, batch: Batch, generator: RowGenerator) -> NoisyCaptions:
        """Corrupt the captions, each at its own timestep."""
        t_B = text_times(self.process, batch, generator.fork("text_time"))
        noisy_BL = self.process.corrupt(batch.tokens_BL, batch.valid_BL, t_B, generator.fork("text_noise"))
        return NoisyCaptions(noisy_BL, t_B, self.process.scored(noisy_BL, batch.valid_BL), {})

    def caption_losses(self, logits: Tensor, batch: Batch, captions: NoisyCaptions, *, gathered: bool) -> Losses:
        """Compute `text_loss` and its statistics."""
        return text_losses(
            self.process, logits, batch, captions.tokens_BL, captions.scored_BL, captions.t_B,
            gathered=gathered, word_id=self.shape.word_ids[0], z_loss=False,
        )  # fmt: skip


class ContinuousImageTextObjective(ImageTextObjective):
    """Losses with captions as noised vectors: the cross-entropy of every token given the noised vectors."""

    def make_process(self) -> None:
        """There is no discrete process."""

    def expected_first_loss(self) -> dict[str, float]:
        """Return log V per token, V without [MASK] and [PAD]: the text head starts at 0."""
        return {"text_nll": math.log(len(self.shape.word_ids))}

    def generative_model(self, model: nn.Module) -> GenerativeModel:
        return ContinuousImageTextGeneration(model, self.shape, self.config)

    def corrupt(self, model: Any, batch: Batch, generator: RowGenerator) -> NoisyCaptions:
        """Draw the noise of the vectors; the model adds it to signal · vector, so that the vectors are trained too."""
        # In the order of the batch, as `text_times`: that of `latent_times` would be the order of the image's times.
        u = generator.fork("text_time").shared_uniform(1)
        t_B = antithetic(u, batch.position_B, batch.global_size, self.config.t_min)
        B, L = batch.tokens_BL.shape
        dim = int(model.config.vector_dim)
        noise_BLe = generator.fork("text_noise").normal(L * dim, dtype=torch.float32).view(B, L, dim)
        signal_B, scale_B = self.config.image_schedule.signal(t_B), self.config.image_schedule.noise(t_B)
        inputs = {"captions_BLe": scale_B[:, None, None] * noise_BLe, "signal_B": signal_B}
        return NoisyCaptions(batch.tokens_BL, t_B, batch.valid_BL, inputs)

    def caption_losses(self, logits: Tensor, batch: Batch, captions: NoisyCaptions, *, gathered: bool) -> Losses:
        scored_BL = captions.scored_BL
        logits_MV = logits if gathered else logits[scored_BL]
        targets_M = batch.tokens_BL[scored_BL]
        words_MV = forbid_(logits_MV.float().clone(), mask_id=self.shape.mask_id, pad_id=self.shape.pad_id)
        nll_M = -words_MV.log_softmax(-1).gather(1, targets_M[:, None]).squeeze(1)
        count = scored_BL.sum()
        losses: Losses = {"text_loss": (nll_M.sum(), count)}
        with torch.no_grad():
            t_M = captions.t_B[scored_BL.nonzero()[:, 0]]
            losses["text_nll"] = (nll_M.detach().sum(), count)
            losses["text_accuracy"] = ((words_MV.argmax(-1) == targets_M).sum(), count)
            losses |= by_time("text_nll", nll_M.detach(), t_M, torch.ones_like(nll_M))
        return losses
