"""Temperature, top-k and top-p, and the draw of tokens from the filtered distribution.

A token is drawn by inverting the cumulative distribution at one float64 uniform number per position. Gumbel noise in
float32 is truncated, which silently lowers the temperature (arXiv:2409.02908), and needs one number per logit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import categorical, parts


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Settings of the draw of a token from the model's distribution."""

    temperature: float = 1.0
    """0: the most probable token"""
    top_k: int | None = None
    top_p: float | None = None
    guidance: float = 1.0


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
