"""`psi`: predictor–corrector samplers of any text process (Duo, Chapter II, arXiv:2602.21185).

A step from t to s is a reverse step (predictor), or draws a clean token x̂_0 and noises it to s again (corrector). The
corrector may change every token:

    x_s ~ κ q(x_s | x_t, x_θ) + (1 − κ) q(x_s | x̂_0),  x̂_0 ~ q(x_0 | x_t, x_θ).

Both have the marginals of the process. With 1 − κ = σ/(1 − α_s) it is ReMDM (arXiv:2503.00307), for any noise.
"""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from mm_ldlm.core import Fraction, bounded, config, refuse_if
from mm_ldlm.diffusion.masked import max_remask_ratio
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig
from mm_ldlm.families.uniform.uniform import UniformConfig
from mm_ldlm.sampling.ancestral import reverse_step
from mm_ldlm.sampling.base import DiffusionSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, TextSample


@config
class PsiConfig(DiffusionSampler):
    """Sampler of the Ψ-posteriors. `steps` are model calls; the last one only predicts.

    Attributes:
        correction: 1 − κ. constant: η. cap, rescale: ReMDM's σ = min(η, σ_max) or η·σ_max, divided by 1 − α_s, at most
            1; only for processes that mask or that draw words uniformly.
        eta: η, the strength of the correction; 0 is ancestral sampling.
        t_on, t_off: the fractions of steps left between which tokens are corrected.
        hold: time that the steps between t_on and t_off keep; null: time falls evenly from 1 to 0.
    """

    kind: str = "psi"
    correction: Literal["constant", "cap", "rescale"] = "constant"
    eta: Fraction = 0.05
    t_on: Fraction = 1.0
    t_off: Fraction = 0.0
    hold: Annotated[float, bounded(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        refuse_if(
            not self.t_off < self.t_on,
            f"t_off must be below t_on, found t_off={self.t_off}, t_on={self.t_on}",
            "t_off",
            "t_on",
        )

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Every process fits a constant correction."""
        if process is None or self.correction == "constant" or process.only_masks or isinstance(process, UniformConfig):
            return super().refusal(process)
        needs = f"for correction '{self.correction}' a process that only masks, or 'uniform'"
        return unfit(self.kind, needs, process, instead="with correction 'constant'")

    def time(self, step: int) -> float:
        """Return the time before a step."""
        left = 1 - step / self.steps
        if self.hold is None or step == 0:  # texts begin as noise
            return left
        if left > self.t_on:
            return 1 - (1 - self.hold) * (1 - left) / (1 - self.t_on)
        return self.hold if left > self.t_off else self.hold * left / max(self.t_off, 1e-12)

    def strength(self, process: TextProcess, t_B: Tensor, s_B: Tensor) -> Tensor:
        """Compute 1 − κ (B,) of a step from t to s > 0."""
        if self.correction == "constant":
            return torch.full_like(s_B, self.eta)
        schedule: Any = process.mask_schedule or process.schedule
        alpha_t, alpha_s = schedule.alpha(t_B), schedule.alpha(s_B)
        largest_B = max_remask_ratio(alpha_t, alpha_s)
        sigma_B = largest_B.clamp_max(self.eta) if self.correction == "cap" else self.eta * largest_B
        return (sigma_B / (1 - alpha_s)).clamp(0, 1)

    def write(self, canvas: Canvas) -> TextSample:
        process, open_BL = canvas.diffusion, canvas.writable_BL
        sample = TextSample.start(process.prior(canvas.tokens, open_BL, canvas.generator.fork("prior")))
        now_B = torch.ones(len(open_BL), dtype=torch.float64, device=open_BL.device)
        for step in range(self.steps):
            t_B, s_B = (now_B * self.time(at) for at in (step, step + 1))
            scored_BL = process.scored(sample.tokens, open_BL)
            rows_A = scored_BL.any(dim=1).nonzero().squeeze(1)
            after = clean = sample
            if rows_A.numel():
                found = canvas.guided_log_x0(sample.tokens, t_B, rows_A, scored_BL, guidance=self.guidance)
                after, clean = (
                    reverse_step(
                        process, sample, scored_BL, *found, step=step, t_B=t_B, s_B=to_B, generator=canvas.generator,
                        draw=self,
                    ).called(rows_A, guidance=self.guidance)
                    for to_B in (s_B, torch.zeros_like(s_B))
                )  # fmt: skip
            if step < self.steps - 1 and self.t_off < 1 - step / self.steps <= self.t_on:
                stream = canvas.generator.fork(step)
                noised_BL = process.corrupt(clean.tokens, open_BL, s_B, stream.fork("noise"))
                chosen_BL = stream.fork("correct").uniform(open_BL.shape[1]) < self.strength(process, t_B, s_B)[:, None]
                after = after.written(open_BL & chosen_BL, noised_BL, clean.log_probs, step)
            sample = after
        return sample
