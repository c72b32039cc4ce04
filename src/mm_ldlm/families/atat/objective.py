"""Adaptive masking (ATAT, adaptive time-aware token masking): text diffusion that learns which tokens are difficult.

An importance estimator is trained jointly with the denoiser, as a second network of the trainable root. Its importance
decides how often a token is masked in training (`masking_policies.py`) and, in the curriculum, how much its loss
counts. Validation and evaluation mask uniformly: their loss is the NELBO of absorbing diffusion, as in
`objectives.text_diffusion`.

B examples, L positions, V ids.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mm_ldlm.core import Fraction, NonNegativeInt, PositiveFloat, config, refuse_if
from mm_ldlm.diffusion.masked import Absorbing, AbsorbingConfig
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.families.atat.curriculum import Curriculum, CurriculumConfig, factors, plateau_after, plateau_start
from mm_ldlm.families.atat.importance import ImportanceConfig, ImportanceEstimator
from mm_ldlm.families.atat.masking_policies import MaskingPolicy, mask_rates, sharpen
from mm_ldlm.families.atat.sampler import WeighingDenoiser
from mm_ldlm.models.base import DataShape, init_weights
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig, TextGeneration
from mm_ldlm.objectives.text_loss import NoisyTexts, sum_tokens, text_times

ImportanceMode = Literal["full", "learned_only", "frequency_only", "none"]
LEARNED = 0.7
"""Weight of the learned importance in the mode `full`; the frequency prior has the rest"""
CONSTANT = 0.5
"""Importance of every token in the mode `none`"""
COLLAPSED_STD = 0.1
"""Standard deviation of the learned importance below which the log has a warning"""


@config
class AdaptiveMaskingConfig(TextDiffusionConfig):
    """Kind `adaptive_masking`: absorbing diffusion of texts with learned mask probabilities.

    Attributes:
        importance: `full` (0.7 learned + 0.3 frequency prior), `learned_only`, `frequency_only`, or `none` (0.5).
        estimator: shape of the importance estimator.
        importance_weight: factor of the estimator's loss in the total.
        noised_inputs: fraction of the texts that the estimator is trained on with their masks, as it meets texts while
            sampling; the others are clean, as it meets them when masks are chosen.
        policy: how importance becomes a mask probability.
        temperature: T of the policies `importance` and `inverse`.
        time_sharpening: use i^(1/(t + 0.1)) in place of the importance i.
        warmup_steps: steps before the curriculum, and before a collapsed importance is reported.
        curriculum: which tokens count more as training proceeds; null: all alike.
    """

    kind: str = "adaptive_masking"
    importance: ImportanceMode = "full"
    estimator: ImportanceConfig = dataclasses.field(default_factory=ImportanceConfig)
    importance_weight: PositiveFloat = 0.1
    noised_inputs: Fraction = 0.5
    policy: MaskingPolicy = "balanced"
    temperature: PositiveFloat = 1.0
    time_sharpening: bool = True
    warmup_steps: NonNegativeInt = 1000
    curriculum: CurriculumConfig | None = None

    def __post_init__(self) -> None:
        refuse_if(
            not isinstance(self.process, AbsorbingConfig),
            "process must be 'absorbing', whose loss can be weighted by the mask probability of each token, found "
            f"'{self.process.kind}'",
            "process.kind",
        )
        refuse_if(
            self.process.loss_weighting != "elbo",
            "process.loss_weighting must be 'elbo': adaptive masking weights the loss by the mask probability of "
            f"each token, found {self.process.loss_weighting!r}",
            "process.loss_weighting",
        )

    @property
    def learns(self) -> bool:
        """Whether there is an estimator."""
        return self.importance in ("full", "learned_only")

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "importance": self.importance}

    def build(self, shape: DataShape, **stores: Tensor) -> "AdaptiveMasking":
        return AdaptiveMasking(self, shape)


class AdaptiveMasking(TextDiffusion):
    """See the module.

    The frequency prior and the state of the curriculum are buffers, so that checkpoints carry them.
    """

    config: AdaptiveMaskingConfig
    process: Absorbing
    prior_V: Tensor
    plateau_4: Tensor

    def __init__(self, config: AdaptiveMaskingConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.estimator: ImportanceEstimator | None = None
        if config.learns:
            self.estimator = ImportanceEstimator(config.estimator, shape)
            init_weights(self.estimator, torch.Generator().manual_seed(0))  # training starts from the run's own seed
            self.weights["importance_loss"], self.units["importance_loss"] = config.importance_weight, "tokens"
        if config.importance in ("full", "frequency_only"):
            # Not a number until training has counted tokens or a checkpoint was loaded: no constant may stand in for it
            self.register_buffer("prior_V", torch.full((shape.first_noise_id,), torch.nan))
        self.curriculum: Curriculum | None = None
        if config.curriculum is not None:
            if config.curriculum.steps is not None:
                self.set_training_length(config.curriculum.steps)
            if config.curriculum.pace == "dynamic":
                self.register_buffer("plateau_4", plateau_start())
        self._collapsed = False

    def generative_model(self, model: nn.Module) -> "AdaptiveGeneration":
        return AdaptiveGeneration(model, self.shape, self.process, self.config, objective=self)

    # -- importance ---------------------------------------------------------------------------------------------------

    def set_token_counts(self, counts: Callable[[], Tensor]) -> None:
        """Make the frequency prior."""
        if self.config.importance in ("full", "frequency_only"):
            self.prior_V.copy_(frequency_prior(counts(), mask_id=self.shape.mask_id))

    def set_training_length(self, steps: int) -> None:
        """Make the curriculum, which depends on the length of the training."""
        if (course := self.config.curriculum) is not None:
            self.curriculum = Curriculum(course, self.config.warmup_steps, course.steps or steps)

    def importance(self, tokens_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Compute the importance (B, L), float32 in [0, 1], of every token of clean or of partly masked texts."""
        mode = self.config.importance
        if mode == "none":
            return torch.full(tokens_BL.shape, CONSTANT, device=tokens_BL.device)
        if self.estimator is None:
            return self.prior_V[tokens_BL]
        learned_BL = self.estimator(tokens_BL, valid_BL)
        if mode == "learned_only":
            return learned_BL
        return LEARNED * learned_BL + (1 - LEARNED) * self.prior_V[tokens_BL]

    # -- losses -------------------------------------------------------------------------------------------------------

    def forward(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        """See `objectives.base.Objective`. In evaluation mode masks are uniform and all tokens count alike."""
        t_B = text_times(self.process, batch, generator)
        with torch.no_grad():
            importance_BL = self.importance(batch.tokens_BL, batch.valid_BL)
            rates = mask_rates(
                self.config.policy if self.training else "uniform", importance_BL, batch.valid_BL, t_B,
                schedule=self.process.schedule, temperature=self.config.temperature,
                time_sharpening=self.config.time_sharpening,
            )  # fmt: skip
            uniform_BL = generator.fork("text_noise").uniform(batch.tokens_BL.shape[1], dtype=torch.float32)
            masked_BL = (uniform_BL < rates.probability_BL) & batch.valid_BL
            noisy_BL = batch.tokens_BL.masked_fill(masked_BL, self.shape.mask_id)
            weight_BL, stage = rates.weight_BL.float(), 0
            if self.config.curriculum is not None and self.training:
                assert self.curriculum is not None, "the length of the training is not known: set_training_length"
                stage = self.curriculum.stage(step, reached=self._reached)
                fractions = self.curriculum.fractions(step, reached=self._reached)
                weight_BL = weight_BL * factors(importance_BL, batch.valid_BL, fractions)
        tokens, losses = self.predict(model, batch, NoisyTexts(noisy_BL, t_B, masked_BL), generator)
        gathered = tokens.scored.numel() != masked_BL.numel()
        weight_M = weight_BL[masked_BL] if gathered else weight_BL.flatten()
        weighted = tokens.found._replace(weighted_M=tokens.found.nll_M * weight_M)
        losses |= sum_tokens(tokens._replace(found=weighted), batch, z_loss=self.config.z_loss > 0)
        nll = tokens.found.nll_M.detach()
        nll_BL = torch.zeros_like(weight_BL).masked_scatter(masked_BL, nll) if gathered else nll.view_as(weight_BL)
        count = batch.valid_BL.sum()
        if self.estimator is not None:
            noised_B = generator.fork("importance_input").uniform() < self.config.noised_inputs
            seen_BL = torch.where(noised_B[:, None], noisy_BL, batch.tokens_BL)
            error_BL = self.estimator(seen_BL, batch.valid_BL) - rank_by_row(nll_BL, masked_BL)
            counted_BL = masked_BL & (masked_BL.sum(dim=1, keepdim=True) > 1)
            losses["importance_loss"] = (torch.where(counted_BL, error_BL.square(), 0.0).sum(), count)
        with torch.no_grad():
            losses |= importance_statistics(importance_BL, batch.valid_BL)
            losses["noise_level"] = (torch.where(batch.real_B, t_B, 0.0).sum(), batch.real_B.sum())
            losses["curriculum_stage"] = (count * stage, count)
        return losses

    @property
    def _reached(self) -> int:
        """The stage that the pace `dynamic` has come to; 0 for the other paces."""
        dynamic = self.curriculum is not None and self.curriculum.config.pace == "dynamic"
        return int(self.plateau_4[0]) if dynamic else 0

    def observe(self, losses: Mapping[str, tuple[float, float]], *, step: int) -> str | None:
        """Advance the dynamic curriculum, and warn of a collapsed importance."""
        nll, masked = losses["text_nll"]
        if self.curriculum is not None and self.curriculum.config.pace == "dynamic" and masked > 0:
            self.plateau_4.copy_(plateau_after(self.plateau_4, self.curriculum, nll / masked, step=step))
        total, count = losses["importance_std"]
        before = self._collapsed
        self._collapsed = self.config.learns and step >= self.config.warmup_steps and total < COLLAPSED_STD * count
        if not self._collapsed or before:
            return None
        return (
            f"expected importance of tokens to have a standard deviation of at least {COLLAPSED_STD}, found "
            f"{total / count:.3f} after {step + 1} steps: all tokens are masked nearly alike. Check importance_loss, "
            "and whether some tokens of this corpus are harder than others."
        )


class AdaptiveGeneration(TextGeneration):
    """Text generation whose denoiser also gives the importance of every position."""

    def __init__(self, *args: Any, objective: AdaptiveMasking) -> None:
        super().__init__(*args)
        self.objective = objective

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> WeighingDenoiser:
        def importance(tokens_AL: Tensor, t_A: Tensor) -> Tensor:
            found_AL = self.objective.importance(tokens_AL, tokens_AL != self.shape.pad_id)
            return sharpen(found_AL, t_A) if self.objective.config.time_sharpening else found_AL

        return WeighingDenoiser(logits=super().text_denoiser(latents_Bd, generator).logits, importance=importance)


def frequency_prior(counts_V: Tensor, *, mask_id: int) -> Tensor:
    """Compute −log p of every id, scaled to [0, 1]: 0 for the most frequent, 1 for the rarest and for unseen ones.

    [MASK] may stand for any token and gets the mean over the corpus. Float32.
    """
    counts_V = counts_V.double()
    seen_V = counts_V > 0
    surprise_V = -torch.log(counts_V.clamp_min(1) / counts_V.sum().clamp_min(1))
    lowest, highest = (surprise_V[seen_V].min(), surprise_V[seen_V].max()) if bool(seen_V.any()) else (0.0, 0.0)
    span = float(highest - lowest)
    scaled_V = (surprise_V - lowest) / span if span > 0 else torch.full_like(surprise_V, CONSTANT)
    prior_V = torch.where(seen_V, scaled_V, 1.0)
    prior_V[mask_id] = (counts_V * prior_V).sum() / counts_V.sum().clamp_min(1)
    return prior_V.float()


def rank_by_row(value_BL: Tensor, chosen_BL: Tensor) -> Tensor:
    """Compute the rank of each chosen value within its row, scaled to [0, 1]: the lowest 0, the highest 1.

    Ranks within a text compare tokens at the same time t, and do not depend on what else is in the batch.
    """
    rank_BL = value_BL.masked_fill(~chosen_BL, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    return rank_BL / (chosen_BL.sum(dim=1, keepdim=True) - 1).clamp_min(1)


def importance_statistics(importance_BL: Tensor, valid_BL: Tensor) -> Losses:
    """Mean, standard deviation, minimum and maximum over the tokens of a micro-batch; averaged over the ranks and steps
    of a log line."""
    count = valid_BL.sum()
    values_BL = importance_BL.double().masked_fill(~valid_BL, 0.0)
    mean = values_BL.sum() / count.clamp_min(1)
    variance = ((values_BL - mean).square() * valid_BL).sum() / count.clamp_min(1)
    nothing = count == 0
    found = {
        "importance_mean": mean,
        "importance_std": variance.sqrt(),
        "importance_min": torch.where(nothing, 0.0, importance_BL.masked_fill(~valid_BL, torch.inf).amin()),
        "importance_max": torch.where(nothing, 0.0, importance_BL.masked_fill(~valid_BL, -torch.inf).amax()),
    }
    return {name: (value * count, count) for name, value in found.items()}
