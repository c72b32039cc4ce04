"""`psi`: predictor–corrector samplers of any text process (Duo, Chapter II, arXiv:2602.21185).

A step from t to s is a reverse step (predictor), or draws a clean token x̂_0 and noises it to s again (corrector). The
corrector may change every token:

    x_s ~ κ q(x_s | x_t, x_θ) + (1 − κ) q(x_s | x̂_0),  x̂_0 ~ q(x_0 | x_t, x_θ).

Both have the marginals of the process. With 1 − κ = σ/(1 − α_s) it is ReMDM (arXiv:2503.00307), for any noise.
"""

from typing import Annotated

import torch

from mm_ldlm.core import Fraction, bounded, config, refuse_if
from mm_ldlm.sampling.ancestral import reverse_step
from mm_ldlm.sampling.base import DiffusionSampler
from mm_ldlm.sampling.denoising import Canvas, TextSample


@config
class PsiConfig(DiffusionSampler):
    """Sampler of the Ψ-posteriors. `steps` are model calls; the last one only predicts.

    Attributes:
        eta: 1 − κ, the strength of the correction; 0 is ancestral sampling.
        t_on, t_off: the fractions of steps left between which tokens are corrected.
        hold: time that the steps between t_on and t_off keep; null: time falls evenly from 1 to 0.
    """

    kind: str = "psi"
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

    def time(self, step: int) -> float:
        """Return the time before a step."""
        left = 1 - step / self.steps
        if self.hold is None or step == 0:  # texts begin as noise
            return left
        if left > self.t_on:
            return 1 - (1 - self.hold) * (1 - left) / (1 - self.t_on)
        return self.hold if left > self.t_off else self.hold * left / max(self.t_off, 1e-12)

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
                chosen_BL = stream.fork("correct").uniform(open_BL.shape[1]) < self.eta
                after = after.written(open_BL & chosen_BL, noised_BL, clean.log_probs, step)
            sample = after
        return sample
