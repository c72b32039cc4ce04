"""FlexMDM: training, likelihood bound and generation of texts by insertion and unmasking (arXiv:2509.01025).

B examples, L positions, P = L + 1 gaps, M masks, V vocabulary, K draws.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import config
from mm_ldlm.diffusion.nelbo import Likelihood
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.times import stratified
from mm_ldlm.families.flexmdm.model import InsertionModel
from mm_ldlm.families.flexmdm.process import (
    Insertion,
    InsertionConfig,
    insertion_divergence,
    insertion_entropy,
    rate,
    time_of,
)
from mm_ldlm.families.flexmdm.sampler import InsertionSampler
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.base import Batch, Losses, Objective, ObjectiveConfig, Unit, require_interface
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.objectives.text_loss import NoisyTexts, text_losses, text_times
from mm_ldlm.sampling.denoising import Canvas, TextSample


@config
class FlexMDMConfig(ObjectiveConfig):
    """Kind `flexmdm`: insertion and unmasking of texts, without latents and without a distribution over lengths.

    Attributes:
        process: the two schedules.
    """

    kind: str = "flexmdm"
    process: InsertionConfig = dataclasses.field(default_factory=InsertionConfig)

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        require_interface(self, model, InsertionModel)
        return Capabilities(
            uses=frozenset({"unconditional", "infill", "score"}), process=self.process, trained_as="objective flexmdm"
        )

    def build(self, shape: DataShape, **stores: Tensor) -> "FlexMDM":
        return FlexMDM(self, shape)


class FlexMDM(Objective):
    """Cross-entropy of the masks, and divergence of the expected from the true number of missing tokens in each gap."""

    def __init__(self, config: FlexMDMConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.process = config.process.build(shape)
        self.weights = {"text_loss": 1.0, "insertion_loss": 1.0}
        self.units: dict[str, Unit] = {"text_loss": "tokens", "insertion_loss": "tokens"}

    def generative_model(self, model: nn.Module) -> "FlexGeneration":
        return FlexGeneration(model, self.shape, self.process)

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        t_B = text_times(self.process, batch, generator)
        partial = self.process.delete(batch.tokens_BL, batch.valid_BL, t_B, generator.fork("text_noise"))
        present_BL = partial.tokens_BL != self.shape.pad_id
        noisy = NoisyTexts(partial.tokens_BL, t_B, self.process.scored(partial.tokens_BL, present_BL))
        logits, log_counts_BP = model(
            partial.tokens_BL, valid_BL=present_BL, t_B=t_B, logits_at=noisy.logits_at(fixed_shapes=self.fixed_shapes)
        )
        aligned = dataclasses.replace(batch, tokens_BL=partial.targets_BL)
        losses = text_losses(self.process, logits, aligned, noisy, z_loss=False)
        cost_BP = gap_divergence(partial.gaps_BP, log_counts_BP, present_BL, batch.valid_BL)
        cost = (rate(self.process.insertion, t_B) * cost_BP.sum(dim=1)).sum()
        return losses | {"insertion_loss": (cost, batch.valid_BL.sum())}


def gap_divergence(gaps_BP: Tensor, log_counts_BP: Tensor, present_BL: Tensor, valid_BL: Tensor) -> Tensor:
    """Compute `insertion_divergence` (B, P) in the gaps of the noisy texts; 0 elsewhere, and in examples without text.

    `present_BL` selects the tokens of the noisy texts, `valid_BL` the tokens of the clean ones.
    """
    real_BP = F.pad(present_BL, (1, 0), value=True) & valid_BL.any(dim=1, keepdim=True)
    return torch.where(real_BP, insertion_divergence(gaps_BP, log_counts_BP), 0.0)


class FlexGeneration(GenerativeModel):
    """Generation, infilling of gaps of unknown length, and likelihood bound; the model chooses the lengths."""

    has_length = False
    process: Insertion

    def __init__(self, model: nn.Module, shape: DataShape, process: Insertion) -> None:
        super().__init__(model, shape)
        self.process = process

    def predict(self, tokens_AL: Tensor, t_A: Tensor, asked_AL: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits (M, V) of the asked positions and the log of the expected counts (A, P)."""
        valid_AL = tokens_AL != self.shape.pad_id
        logits_MV, log_counts_AP = self.model(tokens_AL, valid_BL=valid_AL, t_B=t_A.float(), logits_at=asked_AL)
        return logits_MV, log_counts_AP

    def default_sampler(self, *, conditional: bool) -> InsertionSampler:
        return InsertionSampler(steps=32, temperature=0.0 if conditional else 1.0)

    def write(
        self, canvas_BL: Tensor, open_BL: Tensor, *, latents_Bd: Tensor | None, sampler: Any, generator: RowGenerator
    ) -> TextSample:
        """Write texts of any length: into a canvas of masks at most as many tokens, between given tokens as fit.

        Each run of masks between given tokens is a gap of unknown length.
        """
        made: TextSample = sampler.sample(
            Canvas(
                denoise=self.predict, process=self.process, tokens=canvas_BL, open=open_BL, generator=generator,
                window=self.shape.max_length,
            )
        )  # fmt: skip
        return made

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the upper bound on −log p(text), its length included, `draws` times at low-discrepancy times.

        The bound is the divergence of the paths that lead to the text from the paths of the model,
        ∫ b'/b·Σ CE + a'/a·Σ (g − n − n·log g) dt. With the divergence of training it is ∫ b'/b·Σ CE + a'/a·Σ divergence
        dt − C(length) (`insertion_entropy`), because n·log n has this mean. The integral is over u = √b(t), in which
        b'/b dt = (2/u) du, so that few masks at small t do not dominate the variance.
        """
        process, valid_BL = self.process, tokens_BL != self.shape.pad_id
        constant_B = insertion_entropy(tokens_BL.shape[1]).to(tokens_BL.device)[valid_BL.sum(dim=1)]
        found = []
        for number, u_B in enumerate(stratified(draws, generator.fork("time"))):
            t_B = time_of(process.schedule, u_B.square())
            partial = process.delete(tokens_BL, valid_BL, t_B, generator.fork(number))
            present_BL = partial.tokens_BL != self.shape.pad_id
            masked_BL = process.scored(partial.tokens_BL, present_BL)
            logits_MV, log_counts_BP = self.predict(partial.tokens_BL, t_B, masked_BL)
            nll_M = process.cross_entropy(logits_MV, partial.targets_BL[masked_BL]).nll_M.double()
            cost_B = gap_divergence(partial.gaps_BP, log_counts_BP.double(), present_BL, valid_BL).sum(dim=1)
            cost_B = cost_B * rate(process.insertion, t_B) / rate(process.schedule, t_B)
            found.append(2 / u_B * cost_B.index_add(0, masked_BL.nonzero()[:, 0], nll_M) - constant_B)
        return Likelihood(torch.stack(found))
