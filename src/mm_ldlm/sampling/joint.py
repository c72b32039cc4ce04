"""Joint sampling: a text and its latent are denoised together from noise, along one grid of times.

The orders `text_first` and `latent_first` sample one modality unconditionally and then the other given the first
(UniDiffuser, arXiv:2303.06555); they need no further sampler and are in `mm_ldlm.inference`.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from mm_ldlm.core import refuse_if
from mm_ldlm.sampling.ancestral import reverse_step
from mm_ldlm.sampling.denoising import Canvas, TextSample
from mm_ldlm.sampling.gaussian import DdimConfig, LatentDenoiser, LatentSample, ddim_step, estimate_at, grid
from mm_ldlm.sampling.logit_filters import Draw

JointOrder = Literal["together", "latent_first", "text_first"]
PredictBoth = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(tokens_BL, z_Bd, t_B of both, scored_BL, previous x0 or None) → (logits_MV, latent prediction (B, d))."""


def refuse_samplers(order: JointOrder, text: Any, latent: Any) -> None:
    """Raise ValueError if the samplers do not fit the order in which texts and latents are generated."""
    refuse_if(
        order != "text_first" and latent.draws > 1,
        f"latent.draws is {latent.draws}, but in the order '{order}' each draw is the latent of a different "
        "sentence, and their mean is the latent of no sentence: set draws to 1",
        "latent.draws",
        "order",
    )
    if order != "together":
        return
    expected = {"kind": ("ancestral", "ddim"), "steps": (latent.steps, latent.steps), "guidance": (1.0, 1.0)}
    for key, values in expected.items():  # the kind first: other text samplers need not have the other keys
        for name, sampler, value in zip(("text", "latent"), (text, latent), values, strict=True):
            found = getattr(sampler, key)
            refuse_if(
                found != value,
                f"the order 'together' takes ancestral steps in the text and as many DDIM steps in the latent, "
                f"without guidance: expected {name}.{key} {value!r}, found {found!r}",
                f"{name}.{key}",
                "order",
            )


def together(canvas: Canvas, *, dim: int, draw: Draw, latent: DdimConfig) -> tuple[TextSample, LatentSample]:
    """Take ancestral steps in the text and DDIM steps in the latent, with one model call per step.

    Both have the same time, which falls from `latent.t_max`. The denoiser of the canvas is a `LatentDenoiser`, each
    call of which predicts both (`PredictBoth`). Guidance does not apply, because there is no condition to drop.
    """
    denoise: LatentDenoiser = canvas.denoise
    process, generator = canvas.diffusion, canvas.generator
    points = grid(denoise.schedule, steps=latent.steps, t_max=latent.t_max, device=generator.device)
    z_Bd = points[0].std * generator.fork("latent").normal(dim)
    text = TextSample.start(process.prior(canvas.tokens, canvas.writable_BL, generator.fork("prior")))
    every_B = torch.arange(len(z_Bd), device=z_Bd.device)
    previous_Bd: Tensor | None = None
    for step, (now, then) in enumerate(pairwise(points)):
        t_B, s_B = (torch.full(every_B.shape, at.t, dtype=torch.float64, device=z_Bd.device) for at in (now, then))
        scored_BL = process.scored(text.tokens, canvas.writable_BL)
        logits_MV, prediction_Bd = denoise.predict(text.tokens, z_Bd, t_B.float(), scored_BL, previous_Bd)
        noisy_M, t_M = text.tokens[scored_BL], t_B[scored_BL.nonzero()[:, 0]]
        log_x0_MV = process.log_x0(process.x0_logits(logits_MV, noisy_M, t_M), noisy_M)
        canvas.observe(text.tokens, scored_BL, log_x0_MV)
        text = reverse_step(
            process, text, scored_BL, log_x0_MV, logits_MV, step=step, t_B=t_B, s_B=s_B, generator=generator,
            draw=draw,
        ).called(every_B)  # fmt: skip

        x0_Bd, eps_Bd = estimate_at(now, prediction_Bd, denoise.parameterisation, x_t_Bd=z_Bd)
        previous_Bd = x0_Bd if denoise.self_condition else None
        fresh = partial(generator.fork(step).fork("noise").normal, dim)
        z_Bd = ddim_step(x0_Bd, eps_Bd, now, then, eta=latent.eta, fresh=fresh)
    return text, LatentSample(z_Bd, z_Bd.unsqueeze(0), latent.steps)
