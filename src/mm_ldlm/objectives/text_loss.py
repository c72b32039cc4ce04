"""Losses of texts under a diffusion process at their scored positions, and of their lengths.

B examples, L positions, M scored positions, V vocabulary, N longest text.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mm_ldlm.core import ConfigurationError
from mm_ldlm.diffusion.process import TextProcess, TokenLosses
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.objectives.base import Batch, Losses

TIME_BUCKETS = 4


class NoisyTexts(NamedTuple):
    """Corrupted texts of a batch."""

    tokens_BL: Tensor
    t_B: Tensor
    """(B,), or (B, L) where the parts of a text have separate times"""
    scored_BL: Tensor
    """positions whose logits the loss needs"""

    def logits_at(self, *, fixed_shapes: bool) -> Tensor | None:
        """Select the positions (B, L) at which the vocabulary head is computed; None means all of them.

        On a CPU the head is computed only where the loss needs it. On other devices fixed shapes are faster: they avoid
        a wait for the device, and a compiled model would be compiled again for each number of positions.
        """
        return self.scored_BL if self.scored_BL.device.type == "cpu" and not fixed_shapes else None


class ScoredTokens(NamedTuple):
    """Losses of M positions: the scored ones in row-major order, or all B·L of them."""

    found: TokenLosses
    targets: Tensor
    t: Tensor
    scored: Tensor
    """bool: where the loss counts"""


def text_times(process: TextProcess, batch: Batch, generator: RowGenerator) -> Tensor:
    """Draw timesteps (B,) of the texts, low-discrepancy over the global batch."""
    return process.times(generator.fork("text_time").shared_uniform(), batch.position_B, batch.global_size)


def corrupt(process: TextProcess, batch: Batch, generator: RowGenerator) -> NoisyTexts:
    """Corrupt the texts of a batch, each at its own timestep."""
    t_B = text_times(process, batch, generator)
    noisy_BL = process.corrupt(batch.tokens_BL, batch.valid_BL, t_B, generator.fork("text_noise"))
    return NoisyTexts(noisy_BL, t_B, process.scored(noisy_BL, batch.valid_BL))


def text_losses(process: TextProcess, logits: Tensor, batch: Batch, noisy: NoisyTexts, *, z_loss: bool) -> Losses:
    """Compute sums and counts of `text_loss` (the process's training loss) and of the statistics of the same logits.

    Args:
        logits: (M, V) at the scored positions, or (B, L, V).
        z_loss: also compute the squared log of the normalising constant.
    """
    return sum_tokens(score_tokens(process, logits, batch, noisy), batch, z_loss=z_loss)


def score_tokens(process: TextProcess, logits: Tensor, batch: Batch, noisy: NoisyTexts) -> ScoredTokens:
    """Compute the loss of every position from the logits of `text_losses`.

    Raises:
        ConfigurationError: a token has no logit.
    """
    if logits.shape[-1] < process.vocab_size:
        raise ConfigurationError(
            f"expected logits of the {process.vocab_size} tokens of the vocabulary, found {logits.shape[-1]}. Return "
            "`shape.vocab_size` logits for each position from the model."
        )
    scored_BL = noisy.scored_BL
    targets_BL, t_BL = batch.tokens_BL, noisy.t_B.view(len(scored_BL), -1).expand_as(scored_BL)
    if logits.dim() == 2:
        targets, tokens, t, scored = (x[scored_BL] for x in (targets_BL, noisy.tokens_BL, t_BL, scored_BL))
    else:
        # A position that is not scored needs a target with a finite logit; its loss is discarded.
        targets_BL = torch.where(scored_BL, targets_BL, process.any_word)
        targets, tokens, t, scored = (x.flatten() for x in (targets_BL, noisy.tokens_BL, t_BL, scored_BL))
        logits = logits.flatten(0, 1)
    return ScoredTokens(process.token_losses(logits, targets, tokens, t), targets, t, scored)


def sum_tokens(tokens: ScoredTokens, batch: Batch, *, z_loss: bool) -> Losses:
    """Sum the losses of positions over the micro-batch; see `text_losses`."""
    found, scored = tokens.found, tokens.scored
    chosen = scored.float()
    valid, count = batch.valid_BL.sum(), chosen.sum()
    losses: Losses = {"text_loss": (torch.where(scored, found.weighted_M, 0.0).sum(), valid)}
    if z_loss:
        losses["z_loss"] = ((found.log_norm_M.square() * chosen).sum(), valid)
    with torch.no_grad():
        nll = torch.where(scored, found.nll_M.detach(), 0.0)
        losses["text_nll"] = (nll.sum(), count)
        losses["text_accuracy"] = (((found.best_M == tokens.targets) * chosen).sum(), count)
        losses["masking_rate"] = (count, valid)
        losses |= by_time("text_nll", nll, tokens.t, chosen)
    return losses


def by_time(name: str, value: Tensor, time: Tensor, chosen: Tensor) -> Losses:
    """Split a quantity by quarters of time: `name_t0` is nearest to clean, `name_t3` nearest to noise."""
    bucket = (time * TIME_BUCKETS).long().clamp(0, TIME_BUCKETS - 1)
    sums = torch.zeros(TIME_BUCKETS, dtype=value.dtype, device=value.device).index_add_(0, bucket, value)
    counts = torch.zeros(TIME_BUCKETS, dtype=chosen.dtype, device=value.device).index_add_(0, bucket, chosen)
    return {f"{name}_t{i}": (sums[i], counts[i]) for i in range(TIME_BUCKETS)}


# -- lengths -----------------------------------------------------------------------------------------------------------


def length_loss(length_logits: Tensor, batch: Batch) -> Losses:
    """Compute the cross-entropy of the texts' lengths (classes 1..N) from logits (N,) or (B, N)."""
    logits_BN, real_B = length_logits.expand(len(batch.tokens_BL), -1), batch.real_B
    length_B = batch.valid_BL.sum(1)
    targets_B: Any = torch.where(real_B, length_B - 1, -100)
    ce_B = F.cross_entropy(logits_BN.float(), targets_B, reduction="none", ignore_index=-100)
    with torch.no_grad():
        right_B = (logits_BN.argmax(-1) + 1 == length_B) & real_B
    count = real_B.sum()
    return {"length_loss": (ce_B.sum(), count), "length_accuracy": (right_B.sum(), count)}
