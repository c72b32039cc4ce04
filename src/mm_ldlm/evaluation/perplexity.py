"""The bound on the negative log-likelihood of texts, with and without their latents, honestly counted.

One sentence costs `length NLL + token bound` nats: the model's length head pays for the length (there is no end
token), the diffusion bound for the tokens. The bound (MDLM, arXiv:2406.07524, eq. 10; LLaDA, arXiv:2502.09992) is

    ∫₀¹ (1/m) E[ Σ_{masked} −log p(token | rest) ] dm

in the *masked share* m itself: every schedule gives the same bound, so evaluation draws m, stratified over each row's
draws, masks each valid token with probability m and tells the network the time at which its schedule masks that
share. Nothing is cut off at either end, so the estimate is unbiased for a network at hand; float64 sums; standard
errors over sentences.

Shapes: N sentences, D draws, L tokens, B = rows in a batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mm_ldlm.errors import EvaluationError

if TYPE_CHECKING:
    import torch

LogProbs = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "np.ndarray"], "torch.Tensor"]
"""(noisy_BL, masked_BL, t_B, rows) → log p_MV at the M masked positions, row by row, normalised, nothing on mask and
pad; `rows` (B,) index the set, for the caller's latents."""


@dataclass(frozen=True)
class BoundDraws:
    """Every draw of the bound.

    nll_ND: the draw's estimate of the sentence's token bound, nats. share_ND: masked share m asked for. masked_ND:
    tokens that were masked. cross_entropy_ND: Σ −log p over them. correct_ND: how many of them the mode of p hits.
    length_N: tokens per sentence.
    """

    nll_ND: np.ndarray
    share_ND: np.ndarray
    masked_ND: np.ndarray
    cross_entropy_ND: np.ndarray
    correct_ND: np.ndarray
    length_N: np.ndarray

    @property
    def per_sentence_N(self) -> np.ndarray:
        return self.nll_ND.mean(axis=1)


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error."""

    value: float
    standard_error: float

    @property
    def low(self) -> float:
        return self.value - 1.959964 * self.standard_error

    @property
    def high(self) -> float:
        return self.value + 1.959964 * self.standard_error

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "standard_error": self.standard_error, "low": self.low, "high": self.high}


def bound_draws(
    tokens: Sequence[Sequence[int]],
    log_probs: LogProbs,
    *,
    pad_id: int,
    mask_id: int,
    time_of_share: Callable[[np.ndarray], np.ndarray],
    draws: int,
    seed: int,
    batch_size: int = 64,
    progress: bool = False,
) -> BoundDraws:
    """Draw the bound for each sentence `draws` times.

    Rows are batched by length, but masks depend on (seed, row, draw) only. `time_of_share` maps masked shares to the
    network's time (see `schedule_time`).
    """
    import torch
    from tqdm import tqdm

    length_N = np.array([len(row) for row in tokens], dtype=np.int64)
    if len(tokens) == 0 or length_N.min() < 1:
        raise EvaluationError("the bound needs sentences of at least one token; found an empty one or none at all.")
    count = len(tokens)
    result = {name: np.zeros((count, draws)) for name in ("nll", "share", "masked", "cross_entropy", "correct")}
    # stratified over the draws of a row and shifted from row to row: antithetic over the whole set
    offset_N = np.random.default_rng([seed, 1]).random() + np.arange(count) / count
    result["share"] = 1.0 - (offset_N[:, None] / draws + np.arange(draws) / draws) % 1.0  # in (0, 1]
    order = np.argsort(length_N, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, count, batch_size)]
    for draw in range(draws):
        for rows in tqdm(batches, desc=f"bound, draw {draw + 1} of {draws}", disable=not progress, leave=False):
            width = int(length_N[rows].max())
            clean_BL = np.full((len(rows), width), pad_id, dtype=np.int64)
            hide_BL = np.zeros((len(rows), width), dtype=bool)
            for line, row in enumerate(rows):
                size = length_N[row]
                clean_BL[line, :size] = tokens[row]
                uniform_L = np.random.default_rng([seed, 2, int(row), draw]).random(size)
                hide_BL[line, :size] = uniform_L < result["share"][row, draw]
            result["masked"][rows, draw] = hide_BL.sum(axis=1)
            if not hide_BL.any():
                continue  # a batch that drew no mask costs nothing: legal and unbiased
            noisy_BL = np.where(hide_BL, mask_id, clean_BL)
            t_B = torch.from_numpy(time_of_share(result["share"][rows, draw]).astype(np.float32))
            with torch.inference_mode():
                log_p_MV = log_probs(torch.from_numpy(noisy_BL), torch.from_numpy(hide_BL), t_B, rows).double().cpu()
            target_M = torch.from_numpy(clean_BL[hide_BL])
            loss_M = np.full(len(target_M), np.inf)
            known_M = (target_M < log_p_MV.shape[-1]).numpy()
            loss_M[known_M] = -log_p_MV[known_M, target_M[known_M]].numpy()
            line_M = np.nonzero(hide_BL)[0]
            if not np.isfinite(loss_M).all():
                bad = rows[np.unique(line_M[~np.isfinite(loss_M)])]
                raise EvaluationError(
                    f"the bound is not finite on {len(bad)} sentences (first: row {bad[0]}): the model gives some of "
                    "their tokens probability 0. Are they outside its vocabulary?"
                )
            result["cross_entropy"][rows, draw] = np.bincount(line_M, weights=loss_M, minlength=len(rows))
            hit_M = (log_p_MV.argmax(-1) == target_M).numpy()
            result["correct"][rows, draw] = np.bincount(line_M, weights=hit_M, minlength=len(rows))
    result["nll"] = result["cross_entropy"] / result["share"]
    return BoundDraws(
        nll_ND=result["nll"],
        share_ND=result["share"],
        masked_ND=result["masked"],
        cross_entropy_ND=result["cross_entropy"],
        correct_ND=result["correct"],
        length_N=length_N,
    )


def network_log_probs(network: Any, latents_Nd: torch.Tensor | None, *, seed: int = 0) -> LogProbs:
    """The closure over an `inference.network.Network`: given standardised latents (N, d), or with the latent unknown.

    What stands for an unknown latent is what training made of it (the learned null, else pure noise, seeded per row).
    """
    import torch

    from mm_ldlm.diffusion.masked import forbidden_bias
    from mm_ldlm.diffusion.random import RowGenerator

    device = network.device

    def log_probs(noisy_BL: torch.Tensor, masked_BL: torch.Tensor, t_B: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        row_B = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(device)
        noise_Bd = None
        if latents_Nd is None and not network.knows_null_latent:
            noise_Bd = RowGenerator(seed, row_B).fork("unknown latent").normal(network.width)
        given_Bd = None if latents_Nd is None else latents_Nd[row_B.cpu()].to(device)
        denoise = network.text_denoiser(given_Bd, noise_Bd)
        logits_MV = denoise.logits(
            noisy_BL.to(device), t_B.to(device), torch.arange(len(rows), device=device), masked_BL.to(device)
        )
        bias_V = forbidden_bias(
            logits_MV.shape[-1],
            mask_id=network.mask_id,
            pad_id=network.pad_id,
            vocab_size=network.vocab_size,
            device=device,
        )
        return torch.log_softmax(logits_MV.float() + bias_V, dim=-1)

    return log_probs


def length_nll(network: Any, length_N: np.ndarray, latents_Nd: torch.Tensor | None) -> np.ndarray:
    """(N,) −log p(length) of the length head, nats; the marginal one where no latents are given."""
    import torch

    with torch.inference_mode():
        rows = len(length_N)
        if latents_Nd is None:
            log_p_NL = network.length_log_probs(None, rows=1).expand(rows, -1)
        else:
            parts = [
                network.length_log_probs(part.to(network.device), rows=len(part)) for part in latents_Nd.split(1024)
            ]
            log_p_NL = torch.cat(parts)
        index_N1 = torch.as_tensor(length_N - 1, dtype=torch.int64, device=log_p_NL.device)[:, None]
        return -log_p_NL.gather(1, index_N1)[:, 0].double().cpu().numpy()


def schedule_time(alpha: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """The inverse of a decreasing α(t) by bisection: masked share m → t in [0, 1] with 1 − α(t) = m (t = 1 past its
    end)."""
    import torch

    def time_of_share(share_B: np.ndarray) -> np.ndarray:
        target_B = torch.as_tensor(1.0 - np.asarray(share_B, dtype=np.float64))
        low_B, high_B = torch.zeros_like(target_B), torch.ones_like(target_B)
        for _ in range(50):
            middle_B = (low_B + high_B) / 2
            masks_less = alpha(middle_B) > target_B
            low_B, high_B = torch.where(masks_less, middle_B, low_B), torch.where(masks_less, high_B, middle_B)
        return high_B.numpy()

    return time_of_share


# -- summaries -------------------------------------------------------------------------------------------------------


def per_token(nll_N: np.ndarray, length_N: np.ndarray) -> Estimate:
    """Nats per token, Σ nll ÷ Σ tokens, with the ratio estimator's standard error over sentences."""
    nll_N, length_N = np.asarray(nll_N, dtype=np.float64), np.asarray(length_N, dtype=np.float64)
    if not np.isfinite(nll_N).all():
        raise EvaluationError(f"{(~np.isfinite(nll_N)).sum()} sentences have an NLL that is not finite.")
    rate = nll_N.sum() / length_N.sum()
    count = len(nll_N)
    residual_N = nll_N - rate * length_N
    error = math.sqrt(count / max(1, count - 1) * (residual_N**2).sum()) / length_N.sum()
    return Estimate(float(rate), float(error))


def mean(values_N: np.ndarray) -> Estimate:
    values_N = np.asarray(values_N, dtype=np.float64)
    error = values_N.std(ddof=1) / math.sqrt(len(values_N)) if len(values_N) > 1 else float("nan")
    return Estimate(float(values_N.mean()), float(error))


@dataclass(frozen=True)
class LanguageModelScore:
    """Unconditional and conditional cost of the same sentences, and what lies between them.

    nll_*: nats per token, length included. bits_*: the latent's information as the drop from
    unconditional to conditional cost, in bits, per token and per sentence (paired, so its error is that of the
    differences). Both are upper bounds, so their difference is an estimate of the information and no bound on it.
    """

    sentences: int
    tokens: int
    nll_unconditional: Estimate
    nll_given_latent: Estimate
    length_unconditional: Estimate
    length_given_latent: Estimate
    bits_per_token: Estimate
    bits_per_sentence: Estimate


def language_model_score(
    *,
    unconditional: BoundDraws,
    given_latent: BoundDraws,
    length_unconditional_N: np.ndarray,
    length_given_latent_N: np.ndarray,
) -> LanguageModelScore:
    """Put the two bounds and the two length costs (nats per sentence) together; all on the same sentences in the same
    order."""
    length_N = unconditional.length_N
    if not np.array_equal(length_N, given_latent.length_N):
        raise EvaluationError("the two bounds are of different sentences.")
    free_N = unconditional.per_sentence_N + length_unconditional_N
    told_N = given_latent.per_sentence_N + length_given_latent_N
    bits_N = (free_N - told_N) / math.log(2)
    return LanguageModelScore(
        sentences=len(length_N),
        tokens=int(length_N.sum()),
        nll_unconditional=per_token(free_N, length_N),
        nll_given_latent=per_token(told_N, length_N),
        length_unconditional=mean(length_unconditional_N),
        length_given_latent=mean(length_given_latent_N),
        bits_per_token=per_token(bits_N, length_N),
        bits_per_sentence=mean(bits_N),
    )


def by_time(draws: BoundDraws, *, buckets: int = 10) -> pd.DataFrame:
    """By bucket of masked share: draws, masked tokens, cross-entropy and accuracy per masked token, nats the bucket
    adds per token.

    The last column sums to the token bound per token when buckets hold equally many draws (they do, up to rounding).
    """
    edges = np.linspace(0, 1, buckets + 1)
    index_ND = np.clip(np.ceil(draws.share_ND * buckets).astype(int) - 1, 0, buckets - 1)
    total = draws.length_N.sum() * draws.share_ND.shape[1]
    lines = []
    for bucket in range(buckets):
        here = index_ND == bucket
        masked = draws.masked_ND[here].sum()
        lines.append(
            {
                "low": edges[bucket],
                "high": edges[bucket + 1],
                "draws": int(here.sum()),
                "masked_tokens": int(masked),
                "cross_entropy": draws.cross_entropy_ND[here].sum() / masked if masked else float("nan"),
                "accuracy": draws.correct_ND[here].sum() / masked if masked else float("nan"),
                "nats_per_token": draws.nll_ND[here].sum() / total,
            }
        )
    return pd.DataFrame(lines)
