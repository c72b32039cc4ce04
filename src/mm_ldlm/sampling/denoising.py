"""Denoising loop of the unmasking samplers, with a policy of each sampler for the order of unmasking.

These samplers differ in three decisions: which positions a step evaluates, which of the drawn tokens it keeps, and
which tokens it returns to `[MASK]`. `denoising_loop` does everything else for all texts at once: timesteps, model
calls (texts without an evaluated position are left out of the batch), draws and counts.

Pads and tokens that are not `[MASK]` at the start are never changed. The canvas fixes the length of a text: the model's
length head predicts it beforehand, so there is no end token.

B texts of the request, A texts that a step evaluates, L positions, V vocabulary, M evaluated positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mm_ldlm.diffusion.distributions import entropy, forbid_, normalise_
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.sampling.guidance import guide_log_probs, refuse_without_condition
from mm_ldlm.sampling.logit_filters import Draw, draw_tokens

Logits = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(tokens_AL, t_A, rows_A, evaluated_AL) → logits_MV at the M evaluated positions of the texts `rows_A` of the request.

Each call returns a new tensor, because samplers write into it.
"""


@dataclass(frozen=True, kw_only=True)
class StateDenoiser:
    """Interface of a model of texts and of one continuous state per token, of `dim` dimensions."""

    predict: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(tokens_BL, t_text_B, states_BLd, t_state_B, scored_BL) → (logits_MV, clean states (B, L, d))."""
    dim: int
    schedule: GaussianSchedule
    dropped: bool
    """Whether the model can also predict with dropped states, which guidance needs"""


@dataclass(frozen=True, kw_only=True)
class TextDenoiser:
    """Interface of a model for text samplers: logits at chosen positions, and the special ids."""

    logits: Logits
    mask_id: int
    pad_id: int
    vocab_size: int
    """Ids from this one upwards are never drawn."""
    unconditional: Logits | None = None
    """Logits with the condition replaced by the learned null embedding; needed only for guidance"""
    states: StateDenoiser | None = None
    """The joint prediction of a text and the continuous states of its tokens; None for a model without states."""
    importance: Callable[[Tensor, Tensor], Tensor] | None = None
    """(tokens_AL, t_A) → importance (A, L) of every position, in [0, 1]; None where the run has learned none."""

    @classmethod
    def dense(
        cls, logits: Callable[[Tensor, Tensor], Tensor], *, mask_id: int, pad_id: int, vocab_size: int
    ) -> TextDenoiser:
        """Make a denoiser from a closure `(tokens_AL, t_A) → logits_ALV` that does not depend on the rows."""
        return cls(
            logits=lambda tokens_AL, t_A, rows_A, evaluated_AL: logits(tokens_AL, t_A)[evaluated_AL],
            mask_id=mask_id,
            pad_id=pad_id,
            vocab_size=vocab_size,
        )


@dataclass(frozen=True)
class TextSample:
    """Texts that a sampler wrote, their log-probabilities, and their cost."""

    tokens: Tensor
    """(B, L) with every open position written"""
    log_probs: Tensor
    """(B, L) float32: log-probability of each token when it was last written, before temperature and filters; 0 for
    given tokens
    """
    steps: Tensor
    """(B, L) the step that last changed each token; −1 where it never changed"""
    calls_per_row: Tensor
    """(B,) number of model calls in which the text took part; a guided call counts 2"""
    model_calls: int
    """Number of model calls for the whole request; a guided call counts 2"""


@dataclass(frozen=True)
class State:
    """State of the canvas before a step."""

    step: int
    steps: int
    tokens: Tensor
    """(B, L)"""
    masked: Tensor
    """(B, L) bool: open to the sampler and `[MASK]`"""
    written: Tensor
    """(B, L) bool: open to the sampler and already unmasked"""
    log_probs: Tensor
    """(B, L)"""
    generator: RowGenerator
    """Generator of this step; the numbers of a text depend only on its row id, the position and the step"""

    @property
    def last(self) -> bool:
        """Whether this is the last step, which leaves no mask."""
        return self.step == self.steps - 1

    def uniform(self, name: str) -> Tensor:
        """Draw (B, L) float64 numbers in (0, 1), from a separate stream for each `name`."""
        return self.generator.fork(name).uniform(self.tokens.shape[1], dtype=torch.float64)


@dataclass(frozen=True)
class Query:
    """Positions and texts that a step evaluates."""

    positions: Tensor
    """(B, L) bool, masked positions only"""
    rows: Tensor
    """(B,) bool: texts to evaluate, which include all texts with an evaluated position"""

    @classmethod
    def where_needed(cls, positions_BL: Tensor) -> Query:
        """Evaluate only the texts that have an evaluated position."""
        return cls(positions_BL, positions_BL.any(dim=1))


@dataclass(frozen=True)
class Prediction:
    """Statistics of the drawn tokens at their positions in the canvas of the evaluated texts."""

    evaluated: Tensor
    """(A, L) bool"""
    log_prob: Tensor
    """(A, L) log-probability of the drawn token; −inf where not evaluated"""
    margin: Tensor | None
    """(A, L) probability of the best token minus that of the second; −inf where not evaluated"""
    entropy: Tensor | None
    """(A, L) nats; +inf where not evaluated"""
    rows: Tensor
    """(A,) index of each evaluated text in the request"""
    variance: Tensor | None = None
    """(A, L) 1 − Σp², the variance of the token as a one-hot vector; +inf where not evaluated"""
    best: Tensor | None = None
    """(A, L) probability of the best token; −inf where not evaluated"""
    importance: Tensor | None = None
    """(A, L) importance of each position, in [0, 1]; None where the denoiser has none"""


def denoising_loop(
    denoise: TextDenoiser,
    tokens_BL: Tensor,
    *,
    steps: int,
    generator: RowGenerator,
    draw: Draw,
    timestep: Callable[[State], Tensor],
    query: Callable[[State], Query],
    keep: Callable[[State, Prediction], Tensor] | None = None,
    remask: Callable[[State], Tensor] | None = None,
    open_BL: Tensor | None = None,
    statistics: tuple[str, ...] = (),
) -> TextSample:
    """Unmask `tokens_BL` in up to `steps` steps.

    Args:
        timestep: returns the times (B,) that the model receives.
        query: returns the positions that a step evaluates.
        keep: returns the drawn tokens (A, L) that are written; None keeps all.
        remask: returns the written tokens (B, L) that become `[MASK]` again; called before the step unmasks tokens.
        open_BL: limits the sampler to part of the masks. The loop ends when none of them is left.
        statistics: optional statistics of `Prediction` to compute: "margin", "entropy", "variance", "best" and
            "importance".
    """
    canvas_BL = tokens_BL
    open_BL = open_positions(denoise, tokens_BL, open_BL)
    log_probs_BL = torch.zeros(tokens_BL.shape, dtype=torch.float32, device=tokens_BL.device)
    steps_BL = torch.full_like(tokens_BL, -1)
    calls_B = torch.zeros(tokens_BL.shape[0], dtype=torch.long, device=tokens_BL.device)
    calls, price = 0, 2 if draw.guidance != 1.0 else 1

    for step in range(steps):
        masked_BL = open_BL & (canvas_BL == denoise.mask_id)
        if not bool(masked_BL.any()) and (remask is None or step == steps - 1):
            break
        state = State(step, steps, canvas_BL, masked_BL, open_BL & ~masked_BL, log_probs_BL, generator.fork(step))
        returned_BL = remask(state) if remask is not None and not state.last else None
        wanted = query(state)
        rows_A = wanted.rows.nonzero().squeeze(1)
        if rows_A.numel():
            evaluated_AL = wanted.positions[rows_A]
            u_AL = state.uniform("token")[rows_A]
            token_AL, prediction = _predict(
                denoise, canvas_BL[rows_A], timestep(state)[rows_A], rows_A, evaluated_AL, u_AL, draw, statistics
            )
            kept_AL = evaluated_AL if keep is None else keep(state, prediction) & evaluated_AL
            canvas_BL = canvas_BL.index_copy(0, rows_A, torch.where(kept_AL, token_AL, canvas_BL[rows_A]))
            log_probs_BL = log_probs_BL.index_copy(
                0, rows_A, torch.where(kept_AL, prediction.log_prob, log_probs_BL[rows_A])
            )
            steps_BL = steps_BL.index_copy(0, rows_A, torch.where(kept_AL, step, steps_BL[rows_A]))
            calls_B = calls_B.index_add(0, rows_A, torch.full_like(rows_A, price))
            calls += price
        if returned_BL is not None:
            canvas_BL = canvas_BL.masked_fill(returned_BL, denoise.mask_id)
    return TextSample(canvas_BL, log_probs_BL, steps_BL, calls_B, calls)


def open_positions(denoise: TextDenoiser, tokens_BL: Tensor, open_BL: Tensor | None) -> Tensor:
    """Select the positions (B, L) that a sampler writes: those that are `[MASK]`, limited to `open_BL` if given."""
    masked_BL = tokens_BL == denoise.mask_id
    return masked_BL if open_BL is None else open_BL & masked_BL


def word_log_probs(
    denoise: TextDenoiser,
    tokens_AL: Tensor,
    t_A: Tensor,
    rows_A: Tensor,
    evaluated_AL: Tensor,
    *,
    guidance: float,
) -> Tensor:
    """Compute log-probabilities (M, vocab_size), float32, at masked positions: SUBS, then guidance.

    Raises:
        SamplingError: guidance needs an unconditional prediction that the denoiser does not have.
    """

    def distribution(logits: Logits) -> Tensor:
        words_MV = logits(tokens_AL, t_A.float(), rows_A, evaluated_AL)[..., : denoise.vocab_size].float()
        forbid_(words_MV, mask_id=denoise.mask_id, pad_id=denoise.pad_id)
        return normalise_(words_MV)

    return guided(denoise, distribution, guidance=guidance)


def guided(denoise: TextDenoiser, distribution: Callable[[Logits], Tensor], *, guidance: float) -> Tensor:
    """Compute guided log-probabilities (M, V); `distribution` turns logits into log-probabilities."""
    conditional_MV = distribution(denoise.logits)
    if guidance == 1.0:
        return conditional_MV
    if denoise.unconditional is None:
        raise refuse_without_condition(guidance)
    return guide_log_probs(conditional_MV, distribution(denoise.unconditional), scale=guidance)


def _predict(
    denoise: TextDenoiser,
    tokens_AL: Tensor,
    t_A: Tensor,
    rows_A: Tensor,
    evaluated_AL: Tensor,
    u_AL: Tensor,
    draw: Draw,
    statistics: tuple[str, ...],
) -> tuple[Tensor, Prediction]:
    log_probs_MV = word_log_probs(denoise, tokens_AL, t_A, rows_A, evaluated_AL, guidance=draw.guidance)
    token_M = draw_tokens(log_probs_MV, u_AL[evaluated_AL], draw)

    def spread(values_M: Tensor, fill: float) -> Tensor:
        blank_AL = torch.full(evaluated_AL.shape, fill, dtype=torch.float32, device=evaluated_AL.device)
        return blank_AL.masked_scatter(evaluated_AL, values_M.float())

    margin_AL = entropy_AL = variance_AL = best_AL = importance_AL = None
    if "margin" in statistics:
        best_M2 = log_probs_MV.topk(2, dim=-1).values.exp()
        margin_AL = spread(best_M2[:, 0] - best_M2[:, 1], -torch.inf)
    if "entropy" in statistics:
        entropy_AL = spread(entropy(log_probs_MV), torch.inf)
    if "variance" in statistics:
        variance_AL = spread(1 - log_probs_MV.mul(2).exp().sum(dim=-1), torch.inf)
    if "best" in statistics:
        best_AL = spread(log_probs_MV.amax(dim=-1).exp(), -torch.inf)
    if "importance" in statistics and denoise.importance is not None:
        importance_AL = denoise.importance(tokens_AL, t_A.float())
    prediction = Prediction(
        evaluated=evaluated_AL,
        log_prob=spread(log_probs_MV.gather(1, token_M.unsqueeze(1)).squeeze(1), -torch.inf),
        margin=margin_AL,
        entropy=entropy_AL,
        rows=rows_A,
        variance=variance_AL,
        best=best_AL,
        importance=importance_AL,
    )
    return tokens_AL.masked_scatter(evaluated_AL, token_M), prediction
