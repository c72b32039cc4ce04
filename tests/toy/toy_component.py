"""A model, an objective and a text sampler outside the package, as in another project.

The model is a table of word frequencies, the objective its cross-entropy; the objective also learns a distribution over
lengths in a parameter of its own. Parameters name them by import path: `kind: toy_component:ToyModelConfig`.

B examples, L positions, V vocabulary, N longest length.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import NonNegativeFloat, PositiveFloat, config
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape, build_on_meta
from mm_ldlm.models.parts import tag
from mm_ldlm.objectives.base import Batch, Losses, Objective, ObjectiveConfig, require_interface
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel, Likelihood
from mm_ldlm.sampling.denoising import Canvas, TextSample
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens


class WordModel(Protocol):
    """A model of single words."""

    def __call__(self) -> Tensor: ...


@config
class ToyModelConfig:
    """A table of word frequencies; `initial_std` is the standard deviation of its initial logits."""

    interface: ClassVar[type] = WordModel
    kind: str = "toy_component:ToyModelConfig"
    initial_std: NonNegativeFloat = 0.0

    @property
    def stores(self) -> tuple[str, ...]:
        return ()

    def build(self, shape: DataShape, *, generator: torch.Generator) -> WordTable:
        return build_on_meta(lambda: WordTable(self, shape), generator)


class WordTable(nn.Module):
    """Returns log p(word), (V,), without [PAD] and [MASK]."""

    def __init__(self, config: ToyModelConfig, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.blocks = nn.ModuleList()
        self.logits_V = nn.Parameter(torch.empty(shape.vocab_size))
        tag(self, "word_table")

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.logits_V, std=self.config.initial_std, generator=generator)

    def forward(self) -> Tensor:
        special = torch.zeros_like(self.logits_V, dtype=torch.bool)
        special[[i for i in (self.shape.pad_id, self.shape.mask_id) if i < len(special)]] = True
        return self.logits_V.masked_fill(special, -torch.inf).log_softmax(0)


@config
class ToyObjectiveConfig(ObjectiveConfig):
    """Cross-entropy of the words, and of the lengths with the factor `length_weight`."""

    kind: str = "toy_component:ToyObjectiveConfig"
    length_weight: PositiveFloat = 1.0

    def capabilities(self, model: Any) -> Capabilities:
        require_interface(self, model, WordModel)
        return Capabilities(
            uses=frozenset({"unconditional", "score"}), likelihood="exact", trained_as="the toy objective"
        )

    def build(self, shape: DataShape, **stores: Tensor) -> ToyObjective:
        return ToyObjective(self, shape)


class ToyObjective(Objective):
    kinds = ("words",)

    def __init__(self, config: ToyObjectiveConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.weights = {"text_loss": 1.0, "length_loss": config.length_weight}
        self.units = {"text_loss": "tokens", "length_loss": "examples"}
        self.length_logits_N = nn.Parameter(torch.zeros(shape.max_length))

    def expected_first_loss(self) -> dict[str, float]:
        return {"text_loss": math.log(len(self.shape.word_ids))}

    def forward(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        real_B = batch.real_B
        nll_M = -model()[batch.tokens_BL[batch.valid_BL]]
        length_log_p = self.length_logits_N.log_softmax(0)[batch.valid_BL.sum(1)[real_B] - 1]
        return {
            "text_loss": (nll_M.sum(), batch.valid_BL.sum()),
            "length_loss": (-length_log_p.sum(), real_B.sum()),
        }

    def generative_model(self, model: nn.Module) -> ToyGeneration:
        return ToyGeneration(model, self.shape, self)


@config
class ToySampler:
    """Draws every word on its own."""

    kind: str = "toy_component:ToySampler"
    temperature: NonNegativeFloat = 1.0
    exceeds_window: ClassVar[bool] = False

    def most_calls(self, length: int) -> int:
        return 1

    def override(self, *, steps: int | None = None, temperature: float | None = None) -> ToySampler:
        return self if temperature is None else ToySampler(temperature=temperature)

    def refusal(self, process: Any) -> str | None:
        return None

    def sample(self, canvas: Canvas) -> TextSample:
        """The denoiser is log p(word), (V,)."""
        tokens_BL, open_BL = canvas.tokens, canvas.open
        assert open_BL is not None
        u_M = canvas.generator.uniform(tokens_BL.shape[1])[open_BL]
        log_p_MV = canvas.denoise.expand(len(u_M), -1)
        token_M = draw_tokens(log_p_MV, u_M, Draw(temperature=self.temperature))
        log_p_M = log_p_MV.gather(1, token_M[:, None])[:, 0]
        return TextSample(
            tokens=tokens_BL.masked_scatter(open_BL, token_M),
            log_probs=torch.zeros(tokens_BL.shape, device=log_p_M.device).masked_scatter(open_BL, log_p_M),
            steps=torch.where(open_BL, 0, -1),
            calls_per_row=torch.ones_like(tokens_BL[:, 0]),
            model_calls=1,
        )


class ToyGeneration(GenerativeModel):
    def __init__(self, model: nn.Module, shape: DataShape, objective: ToyObjective) -> None:
        super().__init__(model, shape)
        self.objective = objective

    def default_sampler(self, *, conditional: bool) -> ToySampler:
        return ToySampler()

    def length_log_probs(self, latents_Bd: Tensor | None, *, rows: int) -> Tensor:
        return self.objective.length_logits_N.log_softmax(0).expand(rows, -1)

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        canvas = Canvas(denoise=self.model(), process=None, tokens=canvas_BL, generator=generator, open=open_BL)
        sample: TextSample = sampler.sample(canvas)
        return sample

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        padded_V = F.pad(self.model().double().neg(), (0, max(0, self.shape.pad_id + 1 - self.shape.vocab_size)))
        nll_BL = padded_V[tokens_BL].masked_fill(tokens_BL == self.shape.pad_id, 0.0)
        return Likelihood(nll_BL.sum(1)[None])
