"""Text-only diffusion objective: a text denoiser for any text process, with a marginal distribution over lengths.

With the absorbing process this is MDLM (arXiv:2406.07524).

B examples, L positions, M scored positions, V vocabulary.
"""

import dataclasses
from typing import Annotated, Any

from torch import Tensor, nn

from mm_ldlm.core import NonNegativeFloat, PositiveFloat, config
from mm_ldlm.diffusion.masked import AbsorbingConfig
from mm_ldlm.diffusion.process import TEXT_PROCESSES, TextProcess
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape, TextModel
from mm_ldlm.objectives.base import Batch, Losses, Objective, ObjectiveConfig, Unit, require_interface
from mm_ldlm.objectives.capabilities import Capabilities, untrained_lengths
from mm_ldlm.objectives.generation import DenoiserGeneration, GenerativeModel
from mm_ldlm.objectives.text_loss import NoisyTexts, ScoredTokens, corrupt, length_loss, score_tokens, sum_tokens
from mm_ldlm.sampling.denoising import TextDenoiser


@config
class TextDiffusionConfig(ObjectiveConfig):
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
    def stores(self) -> tuple[str, ...]:
        return tuple(self.process.stores)

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        return int(self.process.build(shape, **stores).noise_ids)

    @property
    def identity(self) -> dict[str, Any]:
        return {"process": self.process.kind}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, TextModel)
        no_lengths = untrained_lengths(self, given=None)
        return Capabilities(
            uses=frozenset({"unconditional", "infill", "score"}),
            likelihood="bound" if no_lengths is None else "given_length",
            untrained_lengths={"unconditional": no_lengths},
            process=self.process,
            trained_as=f"objective {self.kind}, process {self.process.kind}",
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "TextDiffusion":
        return TextDiffusion(self, shape, **stores)


class TextDiffusion(Objective):
    """Losses of text and length for a text process."""

    def __init__(self, config: Any, shape: DataShape, **stores: Tensor) -> None:
        super().__init__(config, shape)
        self.process: TextProcess = config.process.build(shape, **stores)
        self.weights: dict[str, float] = {
            "text_loss": config.text_weight, "length_loss": config.length_weight, "z_loss": config.z_loss,
        }  # fmt: skip
        self.units: dict[str, Unit] = {"text_loss": "tokens", "length_loss": "examples", "z_loss": "tokens"}
        self.idle_parts = frozenset({"length_head"} if config.length_weight == 0 else ())

    def generative_model(self, model: nn.Module) -> GenerativeModel:
        return TextGeneration(model, self.shape, self.process, self.config)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        tokens, losses = self.predict(model, batch, corrupt(self.process, batch, generator), generator)
        return sum_tokens(tokens, batch, z_loss=self.config.z_loss > 0) | losses

    def predict(
        self, model: Any, batch: Batch, noisy: NoisyTexts, generator: RowGenerator
    ) -> tuple[ScoredTokens, Losses]:  # fmt: skip
        """Call the model on corrupted texts; return the losses of tokens and lengths."""
        logits, length_logits = model(
            noisy.tokens_BL, valid_BL=batch.valid_BL, t_B=noisy.t_B,
            logits_at=noisy.logits_at(fixed_shapes=self.fixed_shapes), **self.condition(batch, generator),
        )  # fmt: skip
        tokens = score_tokens(self.process, logits, batch, noisy)
        return tokens, length_loss(length_logits, batch) if self.config.length_weight > 0 else {}

    def condition(self, batch: Batch, generator: RowGenerator) -> dict[str, Tensor]:
        """Make the arguments of the model besides the text and its timestep: none."""
        return {}


class TextGeneration(DenoiserGeneration):
    """Sampling and likelihoods of texts with a text-only denoiser."""

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> TextDenoiser:
        if latents_Bd is not None:
            raise self._missing("texts given latents")

        def logits(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            return self.model(
                tokens_AL, valid_BL=tokens_AL != self.shape.pad_id, t_B=t_A, logits_at=asked_AL
            ).logits  # fmt: skip

        return TextDenoiser(logits=logits)
