"""Distributions over the vocabulary: impossible ids, normalisation, entropy, draws, and the token cross-entropy.

Logits are the largest tensors of the project. These functions pass over them once, in parts of as many rows as fit the
cache, and write into them instead of allocating copies.

M positions, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_PART = {True: 500_000, False: 50_000_000}
"""Numbers in one part, by whether the device is a CPU: as many as fit its cache in float64, or the memory of a GPU."""


def parts(log_probs_MV: Tensor) -> tuple[Tensor, ...]:
    """Split into views of as many rows as fit one part."""
    return log_probs_MV.split(max(1, _PART[log_probs_MV.device.type == "cpu"] // max(1, log_probs_MV.shape[-1])))


def forbid_(logits: Tensor, *, mask_id: int, pad_id: int, vocab_size: int | None = None) -> Tensor:
    """Set logits (…, V) to −inf at [MASK], [PAD] and every id ≥ `vocab_size`, in place (part of SUBS, MDLM §3.2.3)."""
    for forbidden in (mask_id, pad_id):
        if 0 <= forbidden < logits.shape[-1]:
            logits[..., forbidden] = -torch.inf
    if vocab_size is not None:
        logits[..., vocab_size:] = -torch.inf
    return logits


def normalise_(logits_MV: Tensor) -> Tensor:
    """Turn logits into log-probabilities, in place."""
    for part_mV in parts(logits_MV):
        part_mV.sub_(part_mV.amax(dim=-1, keepdim=True))
        part_mV.sub_(part_mV.exp().sum(dim=-1, keepdim=True).log_())
    return logits_MV


def entropy(log_probs_MV: Tensor) -> Tensor:
    """Compute the entropy (M,) of each distribution, in nats."""
    return torch.cat([torch.special.entr(part_mV.exp()).sum(dim=-1) for part_mV in parts(log_probs_MV)])


def categorical(probs: Tensor, uniform: Tensor) -> Tensor:
    """Draw ids (...,) from `probs` (..., V) by inverting their cumulative sum at `uniform` (...,) ∈ (0, 1).

    The draw is in float64, because a Gumbel draw in float32 silently lowers the temperature (arXiv:2409.02908). The
    rows need not be normalised. An id with probability 0 is never drawn.
    """
    cumulative = probs.double().cumsum(-1)
    level = uniform.double()[..., None] * cumulative[..., -1:]
    drawn = torch.searchsorted(cumulative, level, right=True).squeeze(-1)
    if bool((drawn == probs.shape[-1]).any()):  # rounding carried the level to the total: the last id with mass
        ids = torch.arange(probs.shape[-1], device=probs.device)
        drawn = torch.minimum(drawn, (probs > 0).int().mul(ids).amax(-1))
    return drawn


class TokenLosses(NamedTuple):
    """The loss at M scored positions, float32, with the statistics that the same pass over the logits yields."""

    weighted_M: Tensor
    """Nats: what training minimises; the integrand of the NELBO over time, unless the process has other weights"""
    nll_M: Tensor
    """Nats: −log p(target), without the weight; +inf where the target is impossible"""
    best_M: Tensor
    """The most probable id; no gradient"""
    log_norm_M: Tensor
    """log Σ exp logits over the ids that can be predicted"""


def token_loss(
    logits_MV: Tensor, targets_M: Tensor, *, mask_id: int, pad_id: int, vocab_size: int | None = None
) -> TokenLosses:
    """Compute −log p(target) at M positions, with weight 1 and no mass on [MASK], [PAD] and ids ≥ `vocab_size`.

    The backward pass overwrites the logits with their gradient, so a second use of the logits or a second backward pass
    is refused. Leaf tensors are copied first.
    """
    floats_MV = logits_MV.float()
    if floats_MV is logits_MV and logits_MV.is_leaf:
        floats_MV = logits_MV.clone()
    nll_M, log_norm_M, best_M = _TokenLoss.apply(floats_MV, targets_M, mask_id, pad_id, vocab_size)
    return TokenLosses(nll_M, nll_M, best_M, log_norm_M)


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, mask_id: int, pad_id: int, vocab_size: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        # logits − maximum − log Σ, in this order: log Σ exp logits has the rounding of the logits' common offset
        tops, sums, bests = [], [], []
        for part_mV in parts(logits_MV):
            forbid_(part_mV, mask_id=mask_id, pad_id=pad_id, vocab_size=vocab_size)
            top_m, best_m = part_mV.max(dim=-1)
            tops.append(top_m)
            bests.append(best_m)
            sums.append((part_mV - top_m[:, None]).exp_().sum(dim=-1).log_())
        top_M, log_sum_M, best_M = torch.cat(tops), torch.cat(sums), torch.cat(bests)
        ctx.save_for_backward(targets_M, top_M, log_sum_M)
        ctx.mark_non_differentiable(best_M)
        nll_M = log_sum_M - (logits_MV.gather(1, targets_M[:, None])[:, 0] - top_M)
        if ctx.needs_input_grad[0]:
            ctx.logits_MV, ctx.version = logits_MV, logits_MV._version
        return nll_M, top_M + log_sum_M, best_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        nll_grad_M, norm_grad_M, _ = grads
        targets_M, top_M, log_sum_M = ctx.saved_tensors
        grad_MV = ctx.logits_MV
        if grad_MV._version != ctx.version:
            raise RuntimeError("token_loss overwrote the logits; they cannot be used a second time. Pass a copy.")
        both_M = nll_grad_M + norm_grad_M
        rows = [len(part_mV) for part_mV in parts(grad_MV)]
        columns = zip(*(column_M[:, None].split(rows) for column_M in (top_M, log_sum_M, both_M)), strict=True)
        for part_mV, (top_m1, log_sum_m1, both_m1) in zip(grad_MV.split(rows), columns, strict=True):
            part_mV.sub_(top_m1).sub_(log_sum_m1).exp_().mul_(both_m1)
        grad_MV.scatter_add_(1, targets_M[:, None], -nll_grad_M[:, None])
        return grad_MV, None, None, None, None
