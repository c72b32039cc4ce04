"""Sampler `insertion`: τ-leaping of FlexMDM, which inserts masks and unmasks them (arXiv:2509.01025).

A step from t to s unmasks each mask with probability 1 − b(s)/b(t), and inserts λ = (1 − a(s)/a(t))·g masks on average
into each gap, where g is the expected number of tokens that are missing there (a, b: `process`). The given tokens of a
canvas stay, and only gaps in which it has masks grow. After the last step all masks are unmasked in one more call.

B texts, W positions that a text may have, P = W + 1 gaps, A texts of a call, M evaluated masks, V vocabulary.
"""

import dataclasses
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mm_ldlm.core import config
from mm_ldlm.diffusion.process import TextProcessConfig
from mm_ldlm.families.flexmdm.process import Insertion, InsertionConfig, chance
from mm_ldlm.sampling.base import DiffusionSampler, unfit
from mm_ldlm.sampling.denoising import Canvas, Prediction, TextSample
from mm_ldlm.sampling.guidance import no_condition
from mm_ldlm.sampling.limits import Steps
from mm_ldlm.sampling.logit_filters import draw_tokens
from mm_ldlm.sampling.orders import top_by_row


@config
class InsertionSampler(DiffusionSampler):
    """Insert masks and unmask them; rows of a batch grow independently.

    Attributes:
        order: which masks a step unmasks. random: each with the probability of the process. confidence, margin: as
            many, but those whose best token is the most probable, or has the largest margin to the second (adaptive
            inference of the paper).
        insertion: how many masks a step inserts into a gap. poisson: a Poisson number of mean λ (τ-leaping). rounded: λ
            rounded up or down at random, which for λ < 1 is the Euler step of the authors' code. It seldom inserts too
            many.
    """

    kind: str = "insertion"
    steps: Steps = 32
    order: Literal["random", "confidence", "margin"] = "random"
    insertion: Literal["poisson", "rounded"] = "poisson"

    def most_calls(self, length: int) -> int:
        """See `TextSampler.most_calls`."""
        return self.steps + 1

    def refusal(self, process: TextProcessConfig | None) -> str | None:
        """See `TextSampler.refusal`. Only `InsertionConfig` fits."""
        return None if isinstance(process, InsertionConfig) else unfit(self.kind, "a model of insertions", process)

    def write(self, canvas: Canvas) -> TextSample:
        if self.guidance != 1.0:
            raise no_condition(self.guidance)
        process, observe = canvas.diffusion, canvas.observe
        assert isinstance(process, Insertion)
        sample, open_BP, limit_B = _start(canvas)
        (B, W), device = sample.tokens.shape, sample.tokens.device
        for step in range(self.steps + 1):
            stream, last = canvas.generator.fork(step), step == self.steps
            t_B, s_B = (
                torch.full((B,), max(0.0, 1 - at / self.steps), dtype=torch.float64, device=device)
                for at in (step, step + 1)
            )
            length_B, masked_BW = (sample.tokens != process.pad_id).sum(dim=1), sample.tokens == process.mask_id
            due_BW = masked_BW & (stream.fork("unmask").uniform(W) < chance(process.schedule, t_B, s_B)[:, None])
            asked_BW = due_BW if self.order == "random" else masked_BW & due_BW.any(dim=1, keepdim=True)
            room_B = torch.where(open_BP.any(dim=1) & (not last), limit_B - length_B, 0)
            rows_A = (asked_BW.any(dim=1) | (room_B > 0)).nonzero().squeeze(1)
            if not rows_A.numel():
                continue
            used, t_A = int(length_B.max()), t_B[rows_A].clamp_min(process.t_min)
            logits_MV, log_counts_AP = canvas.denoise(sample.tokens[rows_A, :used], t_A, asked_BW[rows_A, :used])
            log_x0_MV = process.log_x0(logits_MV, sample.tokens[asked_BW])
            observe(sample.tokens, asked_BW, log_x0_MV)
            drawn_M = draw_tokens(log_x0_MV, stream.fork("token").uniform(W)[asked_BW], self)
            found = Prediction(asked_BW, log_x0_MV, drawn_M, rows_A, t_A)
            kept_BW = due_BW if self.order == "random" else asked_BW & self._best(found, due_BW.sum(dim=1))
            drawn_BW = sample.tokens.masked_scatter(asked_BW, drawn_M)
            sample = sample.written(kept_BW, drawn_BW, found.log_prob, step).called(rows_A)
            gap_P = torch.arange(W + 1, device=device)
            rate_BP = torch.zeros(B, W + 1, dtype=torch.float64, device=device)
            rate_BP[rows_A, : used + 1] = log_counts_AP.double().exp().clamp_max(W)
            rate_BP = rate_BP * chance(process.insertion, t_B, s_B)[:, None] * open_BP * (gap_P <= length_B[:, None])
            u_BP = stream.fork("insertion").uniform(W + 1)
            added_BP = poisson(rate_BP, u_BP, most=W) if self.insertion == "poisson" else (rate_BP + u_BP).long()
            before_BP = torch.minimum(added_BP.cumsum(dim=1), room_B[:, None])
            if bool(before_BP.any()):
                observe(sample.tokens, torch.zeros_like(asked_BW), log_x0_MV[:0])
                sample, open_BP = _grow(sample, open_BP, before_BP, length_B, process)
        return sample

    def _best(self, found: Prediction, count_B: Tensor) -> Tensor:
        best_M2 = found.log_x0.topk(2, dim=-1).values.exp()
        score_M = best_M2[:, 0] - best_M2[:, 1] if self.order == "margin" else best_M2[:, 0]
        return top_by_row(found.spread(score_M), count_B)


def _start(canvas: Canvas) -> tuple[TextSample, Tensor, Tensor]:
    """Return the given tokens of each text (B, W), the gaps (B, P) that may grow, and the largest lengths (B,)."""
    process, tokens_BL = canvas.diffusion, canvas.tokens
    masked_BL = tokens_BL == process.mask_id
    given_BL = ~masked_BL & (tokens_BL != process.pad_id)
    given_B, L = given_BL.any(dim=1), tokens_BL.shape[1]
    width = max(L, canvas.window or L) if bool(given_B.any()) else L
    order_BL = (~given_BL).long().argsort(dim=1, stable=True)
    text_BL = tokens_BL.masked_fill(~given_BL, process.pad_id).gather(1, order_BL)
    masks_BP = torch.zeros_like(pad(tokens_BL, (0, 1))).scatter_add(
        1, given_BL.long().cumsum(dim=1), masked_BL.long()
    )  # fmt: skip
    limit_B = torch.where(given_B, width, masked_BL.sum(dim=1))
    blank = (0, width - L)
    return TextSample.start(pad(text_BL, blank, value=process.pad_id)), pad(masks_BP, blank) > 0, limit_B


def _grow(
    sample: TextSample, open_BP: Tensor, before_BP: Tensor, length_B: Tensor, process: Insertion
) -> tuple[TextSample, Tensor]:
    """Insert masks; `before_BP` is their number before each token and before the end. New gaps may grow."""
    W = sample.tokens.shape[1]
    place_P = torch.arange(W + 1, device=before_BP.device)
    # what follows the text moves to the column W + 1, which is cut off
    to_BP = torch.where(place_P <= length_B[:, None], place_P + before_BP, W + 1)
    real_BP, end_B1 = place_P < length_B[:, None], (length_B + before_BP[:, -1])[:, None]

    def moved(values_BW: Tensor, fill: float) -> Tensor:
        target_BW = torch.where(real_BP, to_BP, W + 1)[:, :W]
        wide = torch.full((len(values_BW), W + 2), fill, dtype=values_BW.dtype, device=values_BW.device)
        return wide.scatter(1, target_BW, values_BW)[:, :W]

    tokens_BW = moved(sample.tokens, process.mask_id).masked_fill(place_P[:W] >= end_B1, process.pad_id)
    grown = dataclasses.replace(
        sample, tokens=tokens_BW, log_probs=moved(sample.log_probs, 0.0), steps=moved(sample.steps, -1)
    )
    gaps_BP = torch.ones_like(pad(open_BP, (0, 1))).scatter(1, to_BP, open_BP)[:, : W + 1]
    return grown, gaps_BP & (place_P <= end_B1)


def poisson(rate: Tensor, uniform: Tensor, *, most: int) -> Tensor:
    """Draw Poisson numbers, at most `most`, by inverting their distribution function at uniform numbers in (0, 1)."""
    count, mass = torch.zeros_like(rate, dtype=torch.int64), torch.exp(-rate)
    below = mass
    for number in range(1, most + 1):
        more = uniform > below
        if not bool(more.any()):
            break
        count, mass = count + more, mass * rate / number
        below = below + mass
    return count
