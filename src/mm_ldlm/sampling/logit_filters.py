"""Temperature, top-k and top-p, and the draw of tokens from the filtered distribution.

A token is drawn by inverting the cumulative distribution at one float64 uniform number per position. Gumbel noise in
float32 is truncated, which silently lowers the temperature (arXiv:2409.02908), and needs one number per logit.
"""

import torch
from torch import Tensor

from mm_ldlm.core import PositiveInt, config
from mm_ldlm.diffusion.distributions import categorical, parts
from mm_ldlm.sampling.limits import Guidance, Temperature, TopP


@config
class Draw:
    """Settings of the draw of a token from the model's distribution.

    Attributes:
        temperature: temperature of the draw of a token; 0 takes the most probable token.
        top_k, top_p: limit the draw to the most probable tokens.
        guidance: γ of `γ·log p_cond + (1−γ)·log p_uncond`; any value but 1 doubles the model calls.
    """

    temperature: Temperature = 1.0
    top_k: PositiveInt | None = None
    top_p: TopP | None = None
    guidance: Guidance = 1.0

    @property
    def changes_nothing(self) -> bool:
        """Whether a token is drawn from the distribution itself, under guidance or not."""
        return (self.temperature, self.top_k, self.top_p) == (1.0, None, None)


def sharpen(log_probs_MV: Tensor, draw: Draw) -> Tensor:
    """Apply temperature, top-k and top-p to distributions (M, V); at temperature 0 all mass is on the best token.

    The `top_k` largest entries stay, and of those the smallest set of mass ≥ `top_p`; all others become −inf.
    """
    if draw.temperature == 0:
        best_M1 = log_probs_MV.argmax(dim=-1, keepdim=True)
        return torch.full_like(log_probs_MV, -torch.inf).scatter(-1, best_M1, 0.0)
    logits_MV = log_probs_MV / draw.temperature
    if draw.top_k is not None and draw.top_k < logits_MV.shape[-1]:
        smallest_kept_M1 = logits_MV.topk(draw.top_k, dim=-1).values[..., -1:]
        logits_MV = logits_MV.masked_fill(logits_MV < smallest_kept_M1, -torch.inf)
    if draw.top_p is not None and draw.top_p < 1:
        sorted_MV, order_MV = logits_MV.sort(dim=-1, descending=True)
        mass_MV = sorted_MV.softmax(dim=-1, dtype=torch.float64)
        before_MV = mass_MV.cumsum(dim=-1) - mass_MV  # the most probable token has 0 before it and always stays
        drop_MV = torch.zeros_like(logits_MV, dtype=torch.bool).scatter(-1, order_MV, before_MV >= draw.top_p)
        logits_MV = logits_MV.masked_fill(drop_MV, -torch.inf)
    return logits_MV


def draw_tokens(log_probs_MV: Tensor, u_M: Tensor, draw: Draw) -> Tensor:
    """Draw one token for each position; at temperature 0 take the most probable one."""
    if draw.temperature == 0:
        return log_probs_MV.argmax(dim=-1)
    distributions = parts(log_probs_MV)
    uniforms = u_M.split([len(log_probs_mV) for log_probs_mV in distributions])
    return torch.cat(
        [
            categorical(sharpen(log_probs_mV, draw).softmax(dim=-1, dtype=torch.float64), u_m)
            for log_probs_mV, u_m in zip(distributions, uniforms, strict=True)
        ]
    )
