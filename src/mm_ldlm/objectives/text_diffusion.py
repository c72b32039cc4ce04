"""Text-only diffusion objective: a text denoiser for any text process, with a marginal distribution over lengths.

With the absorbing process this is MDLM (arXiv:2406.07524).

B examples, L positions, M scored positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from torch import Tensor, nn

from mm_ldlm.core.config import NonNegativeFloat, PositiveFloat, config
from mm_ldlm.diffusion.absorbing import AbsorbingConfig
from mm_ldlm.diffusion.process import TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.registry import TEXT_PROCESSES
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Unit, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, Use
from mm_ldlm.objectives.text_generation import DenoiserGeneration, TextGeneration, by_use, untrained_lengths
from mm_ldlm.objectives.text_loss import ScoredTokens, length_loss, positions_of_logits, score_tokens, sum_tokens
from mm_ldlm.objectives.training_times import text_times


@config
class TextDiffusionConfig:
    """Kind `text_diffusion`: a text process without latents.

    Attributes:
        process: text process that corrupts the tokens.
        text_weight, length_weight, z_loss: factors of the losses in the total.
    """

    kind: str = "text_diffusion"
    process: Annotated[Any, TEXT_PROCESSES] = dataclasses.field(default_factory=AbsorbingConfig)
    text_weight: PositiveFloat = 1.0
    length_weight: NonNegativeFloat = 0.1
    z_loss: NonNegativeFloat = 0.0

    @property
    def fields(self) -> tuple[str, ...]:
        return ()

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(self.process.stores)

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        return self.text_process(shape, **stores).noise_ids

    @property
    def identity(self) -> dict[str, Any]:
        return {"process": self.process.kind}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, "text_denoiser")
        no_lengths = untrained_lengths(self, given_latents=False)
        uses: set[Use] = {"unconditional", "infill", "score"}
        return Capabilities(
            uses=frozenset(uses if no_lengths is None else uses - {"score"}),  # a score contains -log p(length)
            likelihood="bound",
            untrained_lengths=by_use({"unconditional": no_lengths}),
            process=self.process.traits,
            trained_as=f"objective text_diffusion, process {self.process.kind}",
        )

    def text_process(self, shape: DataShape, **stores: Tensor) -> TextProcess:
        """The process for the ids of the data."""
        process: TextProcess = self.process.build(
            vocab_size=shape.vocab_size, pad_id=shape.pad_id, mask_id=shape.mask_id, **stores
        )
        return process

    def build(self, shape: DataShape, *, fixed_shapes: bool = False, **stores: Tensor) -> TextDiffusion:
        return TextDiffusion(self, shape, fixed_shapes=fixed_shapes, **stores)


class TextDiffusion:
    """Losses of text and length for a text process (`objectives.base.Objective`)."""

    kinds: tuple[str, ...] = ("text",)

    def __init__(
        self, config: TextDiffusionConfig, shape: DataShape, *, fixed_shapes: bool = False, **stores: Tensor
    ) -> None:
        self.config, self.shape, self.fixed_shapes = config, shape, fixed_shapes
        self.process = config.text_process(shape, **stores)
        self.fields = config.fields
        self.weights: dict[str, float] = {
            "text_loss": config.text_weight, "length_loss": config.length_weight, "z_loss": config.z_loss,
        }  # fmt: skip
        self.units: dict[str, Unit] = {"text_loss": "tokens", "length_loss": "examples", "z_loss": "tokens"}

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        return self.kinds[0]

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        return frozenset()

    @property
    def idle_parts(self) -> frozenset[str]:
        return frozenset({"length_head"}) if self.config.length_weight == 0 else frozenset()

    def expected_first_loss(self) -> dict[str, float]:
        """Return the NLL of equal logits, because the text head starts at 0."""
        found = self.process.initial_nll()
        return {} if found is None else {"text_nll": found}

    def generative_model(self, model: nn.Module) -> DenoiserGeneration:
        return TextGeneration(model, self.shape, self.process, self.config)

    def __call__(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        t_B = text_times(self.process, batch, generator.fork("text_time"))
        noisy_BL = self.process.corrupt(batch.tokens_BL, batch.valid_BL, t_B, generator.fork("text_noise"))
        tokens, losses = self.predict(model, batch, noisy_BL, t_B, generator)
        return sum_tokens(tokens, batch, z_loss=self.config.z_loss > 0) | losses

    def predict(
        self, model: nn.Module, batch: Batch, noisy_BL: Tensor, t_B: Tensor, generator: RowGenerator
    ) -> tuple[ScoredTokens, Losses]:
        """Call the model on corrupted texts; return the losses of their tokens, and those of their lengths."""
        scored_BL = self.process.scored(noisy_BL, batch.valid_BL)
        logits_at = positions_of_logits(scored_BL, fixed_shapes=self.fixed_shapes)
        given = self.condition(batch, generator)
        logits, length_logits = model(noisy_BL, valid_BL=batch.valid_BL, t_B=t_B, logits_at=logits_at, **given)
        tokens = score_tokens(
            self.process, logits, batch, noisy_BL, scored_BL, t_B,
            gathered=logits_at is not None, word_id=self.shape.word_ids[0],
        )  # fmt: skip
        if self.config.length_weight == 0:
            return tokens, {}
        return tokens, length_loss(length_logits.expand(len(noisy_BL), -1), batch)

    def condition(self, batch: Batch, generator: RowGenerator) -> dict[str, Tensor]:
        """Make the arguments of the model besides the text and its timestep: none."""
        return {}
