"""Laws over the vocabulary: ids that are never predicted, normalisation, entropy, and the cross-entropy of training.

Nothing in this project is as large as logits. What is here goes over them once, as many rows at a time as a cache
holds, and writes into them instead of beside them.

M positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_PART = {True: 500_000, False: 50_000_000}
"""Numbers worked on at a time: what a CPU's cache holds in float64 (True), what a GPU's memory bears."""


def parts(laws_MV: Tensor) -> tuple[Tensor, ...]:
    """Views of as many rows as are worked on at a time."""
    return laws_MV.split(max(1, _PART[laws_MV.device.type == "cpu"] // max(1, laws_MV.shape[-1])))


def forbid_(logits: Tensor, *, mask_id: int, pad_id: int, vocab_size: int | None = None) -> Tensor:
    """−inf at [MASK], [PAD] and every id ≥ `vocab_size` of logits (…, V), in place (half of SUBS, MDLM §3.2.3)."""
    for forbidden in (mask_id, pad_id):
        if 0 <= forbidden < logits.shape[-1]:
            logits[..., forbidden] = -torch.inf
    if vocab_size is not None:
        logits[..., vocab_size:] = -torch.inf
    return logits


def normalise_(logits_MV: Tensor) -> Tensor:
    """Logits to log-probabilities, in place."""
    for part_mV in parts(logits_MV):
        part_mV.sub_(part_mV.logsumexp(dim=-1, keepdim=True))
    return logits_MV


def entropy(log_probs_MV: Tensor) -> Tensor:
    """(M,) nats."""
    return torch.cat([torch.special.entr(part_mV.exp()).sum(dim=-1) for part_mV in parts(log_probs_MV)])


class TokenLoss(NamedTuple):
    """The cross-entropy at M positions, float32, and what else a pass over the logits gives."""

    nll_M: Tensor
    """−log p(target); +inf where the target is forbidden"""
    log_norm_M: Tensor
    """log Σ exp logits, without the forbidden ones"""
    best_M: Tensor
    """The most probable id; no gradient"""


def token_loss(
    logits_MV: Tensor, targets_M: Tensor, *, mask_id: int, pad_id: int, vocab_size: int | None = None
) -> TokenLoss:
    """−log p(target) under the law of the logits without forbidden ids, for positions that are masked in the input.

    Logits that another operation made are used up: the gradient is written over them, and a second backward pass is
    refused. Leaves are copied first.
    """
    logits_MV = logits_MV.float()
    if logits_MV.is_leaf:
        logits_MV = logits_MV.clone()
    return TokenLoss(*_TokenLoss.apply(logits_MV, targets_M, mask_id, pad_id, vocab_size))


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, mask_id: int, pad_id: int, vocab_size: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        norms, bests = [], []
        for part_mV in parts(logits_MV):
            forbid_(part_mV, mask_id=mask_id, pad_id=pad_id, vocab_size=vocab_size)
            norms.append(part_mV.logsumexp(dim=-1))
            bests.append(part_mV.argmax(dim=-1))
        log_norm_M, best_M = torch.cat(norms), torch.cat(bests)
        ctx.save_for_backward(targets_M, log_norm_M)
        ctx.logits_MV = logits_MV
        ctx.mark_non_differentiable(best_M)
        return log_norm_M - logits_MV.gather(1, targets_M[:, None])[:, 0], log_norm_M, best_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        nll_grad_M, norm_grad_M, _ = grads
        targets_M, log_norm_M = ctx.saved_tensors
        grad_MV, ctx.logits_MV = ctx.logits_MV, None
        if grad_MV is None:
            raise RuntimeError("token_loss: its gradient was taken before, and the logits are used up.")
        both_M = nll_grad_M + norm_grad_M
        rows = [len(part_mV) for part_mV in parts(grad_MV)]
        for part_mV, norm_m, both_m in zip(
            grad_MV.split(rows), log_norm_M.split(rows), both_M.split(rows), strict=True
        ):
            part_mV.sub_(norm_m[:, None]).exp_().mul_(both_m[:, None])
        grad_MV.scatter_add_(1, targets_M[:, None], -nll_grad_M[:, None])
        return grad_MV, None, None, None, None
