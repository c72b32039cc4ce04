"""CANDI: hybrid discrete and continuous diffusion of texts (arXiv:2510.22510).

A token is masked as in absorbing diffusion, and each masked position also has the noisy one-hot vector z of its token
(`noise.py`). The model reads both and predicts the tokens. In sampling, z follows the probability-flow ODE towards the
prediction while the masks are removed at random, so that masked positions agree with one another before they are
written.

B examples, L positions, M masked positions, I ids that the model reads, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mm_ldlm.core import SamplingError, bounded, config, refuse_if
from mm_ldlm.diffusion.distributions import TokenLosses
from mm_ldlm.diffusion.masked import Absorbing, AbsorbingConfig
from mm_ldlm.diffusion.nelbo import Likelihood, integrate
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.times import stratified
from mm_ldlm.families.candi.noise import OneHotNoise
from mm_ldlm.models.base import DataShape, TextOutput
from mm_ldlm.objectives.base import Batch, Losses
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.text_diffusion import TextDiffusion, TextDiffusionConfig, TextGeneration
from mm_ldlm.objectives.text_loss import corrupt, sum_tokens
from mm_ldlm.sampling.ancestral import reverse_step, time_of
from mm_ldlm.sampling.base import UnmaskingSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, TextDenoiser, TextSample
from mm_ldlm.sampling.guidance import no_condition
from mm_ldlm.sampling.logit_filters import sharpen
from mm_ldlm.sampling.registry import text_sampler

FIELD = "one_hots"
Rank = Annotated[float, bounded(gt=0, lt=0.5)]


@config
class CandiConfig(TextDiffusionConfig):
    """Kind `candi`: absorbing diffusion of texts with Gaussian noise at the masks.

    Attributes:
        min_rank, max_rank: rank of the noise without masks and at masks only (`noise.py`); the paper has .01 or .05 to
            .25 for 50,257 ids and .1 to .4 for characters.
    """

    kind: str = "candi"
    min_rank: Rank = 0.05
    max_rank: Rank = 0.25

    def __post_init__(self) -> None:
        refuse_if(
            not isinstance(self.process, AbsorbingConfig),
            f"process must be 'absorbing', whose masks have noise, found '{self.process.kind}'",
            "process.kind",
        )
        refuse_if(
            not self.min_rank < self.max_rank,
            f"min_rank must be below max_rank, found {self.min_rank} and {self.max_rank}",
            "min_rank",
            "max_rank",
        )

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "min_rank": self.min_rank, "max_rank": self.max_rank}

    def capabilities(self, model: Any) -> Capabilities:
        """See `objectives.base.ObjectiveConfig.capabilities`."""
        return dataclasses.replace(super().capabilities(model), fields=(FIELD,), only_sampler="candi")

    def build(self, shape: DataShape, **stores: Tensor) -> "Candi":
        return Candi(self, shape)


class Candi(TextDiffusion):
    """Losses of the text and of the length.

    The text loss is the loss of absorbing diffusion, given z. It is not a likelihood, because z contains information
    about the tokens; `CandiGeneration.likelihood` adds its cost.
    """

    config: CandiConfig
    process: Absorbing

    def __init__(self, config: CandiConfig, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.noise = OneHotNoise(shape, min_rank=config.min_rank, max_rank=config.max_rank)

    def generative_model(self, model: nn.Module) -> "CandiGeneration":
        return CandiGeneration(model, self.shape, self.process, self.config, noise=self.noise)

    def expected_first_loss(self) -> dict[str, float]:
        """See `objectives.base.Objective`; z contains information about a token."""
        return {}

    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        noisy = corrupt(self.process, batch, generator)
        ratio_B = self.process.mask_probability(noisy.t_B)
        z_BLI = self.noise.draw(batch.tokens_BL, ratio_B, generator.fork(FIELD))

        def read(noisy_BL: Tensor, **given: Any) -> TextOutput:
            return self.noise.predict(model, noisy_BL, noisy.scored_BL, z_BLI, ratio_B, **given)

        tokens, losses = self.predict(read, batch, noisy, generator)
        return sum_tokens(tokens, batch, z_loss=self.config.z_loss > 0) | losses


# -- inference ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandiDenoiser(TextDenoiser):
    """Denoiser of masked texts that also reads z."""

    predict: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    """(tokens_AL, t_A, z_ALI, asked_AL) → logits_MV"""
    noise: OneHotNoise


@config
class CandiSampler(UnmaskingSampler):
    """Sampler of runs of the objective `candi`: an Euler step of z, and unmasking at random, with one model call.

    Temperature, top-k and top-p apply to x_θ, thus also to the step of z.
    """

    kind: str = "candi"

    denoises: ClassVar[str | None] = FIELD

    def write(self, canvas: Canvas) -> TextSample:
        """Write a canvas.

        Raises:
            SamplingError: the model was not trained with z, or guidance is requested.
        """
        denoise, process, every_BL = canvas.denoise, cast(Absorbing, canvas.diffusion), canvas.writable_BL
        if not isinstance(denoise, CandiDenoiser):
            raise SamplingError(unfit(self.kind, f"a model of the field '{FIELD}'", process.traits))
        if self.guidance != 1.0:
            raise no_condition(self.guidance)
        sample = TextSample.start(canvas.tokens)
        t_B, nothing_BL = time_of(0, self.steps, canvas.tokens), torch.full_like(canvas.tokens, process.pad_id)
        z_BLI = denoise.noise.draw(nothing_BL, process.mask_probability(t_B), canvas.generator.fork(FIELD))
        for step in range(self.steps):
            scored_BL = process.scored(sample.tokens, every_BL)
            rows_A = scored_BL.any(dim=1).nonzero().squeeze(1)
            if not rows_A.numel():
                break
            t_B, s_B = (time_of(at, self.steps, canvas.tokens) for at in (step, step + 1))
            logits_MV = denoise.predict(sample.tokens[rows_A], t_B[rows_A].float(), z_BLI[rows_A], scored_BL[rows_A])
            log_x0_MV = process.log_x0(logits_MV, sample.tokens[scored_BL])
            canvas.observe(sample.tokens, scored_BL, log_x0_MV)
            x0_MV = sharpen(log_x0_MV, self).softmax(dim=-1)
            x0_MI = F.pad(x0_MV, (0, z_BLI.shape[-1] - x0_MV.shape[-1]))
            x0_BLI = torch.zeros_like(z_BLI).masked_scatter(scored_BL[..., None], x0_MI)
            z_BLI = denoise.noise.flow(z_BLI, x0_BLI, *(process.mask_probability(at_B) for at_B in (t_B, s_B)))
            sample = reverse_step(
                process, sample, scored_BL, log_x0_MV, logits_MV, step=step, t_B=t_B, s_B=s_B,
                generator=canvas.generator, draw=self,
            ).called(rows_A)  # fmt: skip
        return sample


class CandiGeneration(TextGeneration):
    """Samples of texts with z, and the NELBO of the text by the joint process."""

    process: Absorbing

    def __init__(self, *args: Any, noise: OneHotNoise) -> None:
        super().__init__(*args)
        self.noise = noise

    def default_sampler(self, *, conditional: bool) -> Any:
        return text_sampler("candi", steps=32)

    def text_denoiser(self, latents_Bd: Tensor | None, generator: RowGenerator) -> CandiDenoiser:
        def without(tokens_AL: Tensor, t_A: Tensor, rows_A: Tensor, asked_AL: Tensor) -> Tensor:
            raise SamplingError("expected the sampler 'candi', found one of texts without noise. Choose 'candi'.")

        return CandiDenoiser(logits=without, predict=self._predict, noise=self.noise)

    def _predict(self, tokens_AL: Tensor, t_A: Tensor, z_ALI: Tensor, asked_AL: Tensor) -> Tensor:
        ratio_A = self.process.mask_probability(t_A)
        return self.noise.predict(
            self.model, tokens_AL, tokens_AL == self.shape.mask_id, z_ALI, ratio_A,
            valid_BL=tokens_AL != self.shape.pad_id, t_B=t_A, logits_at=asked_AL,
        ).logits  # fmt: skip

    def likelihood(
        self, tokens_BL: Tensor, *, latents_Bd: Tensor | None, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO of the process of masks and z; both are functions of the mask ratio m, without an end term.

        −log p(tokens | length) ≤ ∫₀¹ E[Σ over masked positions of −log x_θ(x)/m − ½ dσ⁻²/dm ‖e_x − x̂‖²] dm
        + L/(2σ(1)²). The terms are the divergences of the rates of unmasking, of the reverse diffusions of z
        (Girsanov), and of z at m = 1 from N(0, σ(1)²). x̂ is x_θ as a vector.
        """
        process, predict, drawn = self.process, self.text_denoiser(latents_Bd, generator).predict, list[Tensor]()

        def corrupted(tokens_BL: Tensor, valid_BL: Tensor, ratio_B: Tensor, stream: RowGenerator) -> Tensor:
            drawn[:] = [self.noise.draw(tokens_BL, ratio_B, stream.fork(FIELD))]
            return process.mask(tokens_BL, valid_BL, ratio_B, stream)

        def losses(logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, ratio_M: Tensor) -> TokenLosses:
            log_x0_MV = process.log_x0(logits_MV, noisy_M)
            log_p_M = log_x0_MV.gather(1, targets_M[:, None])[:, 0].double()
            error_M = log_x0_MV.exp().square().sum(dim=-1) + 1 - 2 * log_p_M.exp()
            weighted_M = self.noise.error_weight(ratio_M) * error_M - log_p_M / ratio_M
            return TokenLosses(weighted_M, -log_p_M, log_x0_MV.argmax(dim=-1), torch.zeros_like(log_p_M))

        valid_BL = tokens_BL != self.shape.pad_id
        found = integrate(
            process, lambda noisy_BL, t_B, scored_BL: predict(noisy_BL, t_B, drawn[0], scored_BL), tokens_BL, valid_BL,
            stratified(draws, generator.fork("time")), generator,
            time=process.schedule.time_of_mask_ratio, corrupt=corrupted, losses=losses,
        )  # fmt: skip
        return dataclasses.replace(found, nll_KB=found.nll_KB + self.noise.prior_kl() * valid_BL.sum(dim=1))
