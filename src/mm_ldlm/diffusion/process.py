"""Interface of diffusion processes over tokens: corruption, loss, reverse step, prior and NELBO.

Objectives, samplers and scoring use the same `TextProcess`, so they work for every process. Nothing outside a process
assumes that noise is [MASK]. Absorbing diffusion (`absorbing.py`) is one process.

B examples, L positions, V vocabulary, M positions out of B·L whose logits are needed, K draws. α_t is the fraction of
tokens kept at time t; 0 is clean, 1 is all noise.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(noisy_BL, t_B float32, scored_BL) → logits_MV at the scored positions, in row-major order.

Each call returns a tensor of its own, because the process writes into it.
"""


class TokenLosses(NamedTuple):
    """The loss at M scored positions, float32."""

    weighted_M: Tensor
    """Nats: what training minimises; the integrand of the NELBO over time, unless the process has other weights"""
    nll_M: Tensor
    """Nats: −log x_θ(target), without the weight"""
    best_M: Tensor
    """The most probable id; no gradient"""
    log_norm_M: Tensor
    """log Σ exp logits over the ids that can be predicted"""


@dataclass(frozen=True)
class NelboDraws:
    """K draws of the negative ELBO for each of B texts, float64."""

    nll_KB: Tensor
    """Nats: each an unbiased draw of the upper bound on −log p(tokens | length)"""
    noise_KB: Tensor
    """Noise level of the draw in (0, 1]: the mask ratio where the noise is [MASK], otherwise the time or 1 − α_t"""
    scored_KB: Tensor
    """Number of positions that were scored"""
    correct_KB: Tensor
    """Number of scored positions where the model's most probable token is correct"""
    cross_entropy_KB: Tensor
    """Nats: sum of −log x_θ(target) over the scored positions, without the weight"""


@dataclass(frozen=True, kw_only=True)
class ProcessTraits:
    """Properties of a process that decide which samplers fit it; the attributes of `TextProcess` explain them."""

    kind: str
    only_masks: bool = False
    """Whether the process has a `mask_schedule`"""
    revises: bool = False
    predicts_scores: bool = False


class TextProcessConfig(Protocol):
    """A text process as parameters; see `diffusion.registry.TEXT_PROCESSES`."""

    kind: str
    stores: ClassVar[tuple[str, ...]]
    """Stores of the dataset that the process is made from ("token_clusters"); () for most processes"""

    @property
    def traits(self) -> ProcessTraits:
        """Traits of the process that `build` makes, for checks before there are data."""
        ...

    def build(self, *, vocab_size: int, pad_id: int, mask_id: int, **stores: Any) -> TextProcess:
        """Build the process for a tokenizer's ids. Each store comes as an argument of its name: (rows, d), all rows.

        Raises:
            ConfigurationError: a store does not fit the tokenizer.
        """
        ...


class TextProcess(ABC):
    """A noising process q(x_t | x_0) over the tokens of a text, and its reverse.

    Pads are never corrupted, never scored and never drawn.
    """

    kind: str
    """Name of the process, as in the parameters"""
    vocab_size: int
    """Ids from this one upwards are never predicted."""
    pad_id: int
    mask_id: int
    """[MASK] of the tokenizer. In a canvas it marks what is to be written; noise need not be [MASK]."""
    noise_ids: int = 0
    """Number of ids that only noise has, from `first_noise_id` on. The model reads them and never predicts them."""
    mask_schedule: MaskSchedule | None = None
    """α_t of a process whose only noise is [MASK] and whose unmasked tokens are final; None for other processes.

    Samplers that choose the order of unmasking need it.
    """
    predicts_scores: bool = False
    """Whether the model's output is log-scores instead of logits of x_0, which `x0_logits` and `score_step` read."""

    @property
    def first_noise_id(self) -> int:
        """The id after those of the tokenizer, as in `models.base.DataShape.first_noise_id`."""
        return max(self.vocab_size, self.pad_id + 1, self.mask_id + 1)

    revises: bool = False
    """Whether noise includes words, so that a written token may change again."""

    @property
    def traits(self) -> ProcessTraits:
        """Properties that decide which samplers fit; the same as those of the configuration."""
        return ProcessTraits(
            kind=self.kind,
            only_masks=self.mask_schedule is not None,
            revises=self.revises,
            predicts_scores=self.predicts_scores,
        )

    # -- training ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def times(self, u: Tensor | float, index_B: Tensor, total: int) -> Tensor:
        """Draw the training times t (B,) of the examples at `index_B` of a global batch of `total` examples.

        `u` is one uniform number that all ranks share.
        """

    @abstractmethod
    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_t (B, L) from q(x_t | x_0) at the valid positions; the others stay as they are."""

    @abstractmethod
    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the valid positions (B, L) whose logits the loss and the reverse step need."""

    @abstractmethod
    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute the loss at M scored positions. The logits may be overwritten."""

    def initial_nll(self) -> float | None:
        """−log x_θ(target) of a model whose logits are all equal; None where it depends on x_t."""
        return math.log(sum(i not in (self.pad_id, self.mask_id) for i in range(self.vocab_size)))

    # -- sampling ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_1 (B, L) at the open positions; the others keep their tokens."""

    @abstractmethod
    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, V'), V' ≤ vocab_size: normalised, and −inf where an id is impossible given x_t.

        The logits may be overwritten.
        """

    @abstractmethod
    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Draw x_s (M,) from Σ over x_0 of q(x_s | x_t, x_0) p_θ(x_0 | x_t), in float64; at s = 0 no noise is left.

        p_θ(x_0 | x_t) is x_θ, or what the process makes of it: in `interpolating.py` it is ∝ q(x_t | x_0) x_θ(x_0).
        `log_x0_MV` may be unnormalised (after temperature or top-k). `uniform_M2` are two float64 numbers in (0, 1)
        for each position: one decides whether its token changes, the other to which token.
        """

    def x0_logits(self, output_MV: Tensor, noisy_M: Tensor, t_M: Tensor) -> Tensor:
        """Turn the model's output at time t into the logits that `log_x0` takes; the output itself by default.

        A process whose model predicts scores leaves the output as it is, because `score_step` reads it afterwards.
        """
        return output_MV

    def score_step(self, output_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor) -> Tensor:
        """Draw x_s (M,) as `reverse_step` does, from the model's output itself; by default from its x_θ.

        Scores contain more than x_θ does, which is normalised. Temperature, top-k, top-p and guidance act on x_θ, so
        samplers take this step without them, and `reverse_step` with them.
        """
        log_x0_MV = self.log_x0(self.x0_logits(output_MV, noisy_M, t_M), noisy_M)
        return self.reverse_step(log_x0_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)

    # -- likelihood -------------------------------------------------------------------------------------------------

    def nelbo_times(self, u_B: Tensor) -> tuple[Tensor, Tensor]:
        """Turn u (B,) ∈ (0, 1] into the times t(u) of the NELBO and dt/du; other processes choose a better variable."""
        return u_B, torch.ones_like(u_B)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> NelboDraws:
        """Draw the NELBO of each text `draws` times, at low-discrepancy u_k = 1 − (u + k/K) mod 1.

        Integrates `token_losses` over t(u) from 0 to 1 (`nelbo_times`). This integral is the whole NELBO if x_1 follows
        the prior exactly and x_0 is the clean text; other processes override this method and add their terms.
        """

        def losses(logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, u_M: Tensor) -> TokenLosses:
            t_M, slope_M = self.nelbo_times(u_M)
            loss = self.token_losses(logits_MV, targets_M, noisy_M, t_M)
            return loss._replace(weighted_M=loss.weighted_M.double() * slope_M)

        levels_KB = stratified(draws, generator.fork("time"))
        found = draw_bound(
            predict,
            tokens_BL,
            valid_BL,
            levels_KB=levels_KB,
            generator=generator,
            corrupt=lambda u_B, stream: self.corrupt(tokens_BL, valid_BL, self.nelbo_times(u_B)[0], stream),
            scored=self.scored,
            time=lambda u_B: self.nelbo_times(u_B)[0],
            losses=losses,
        )
        return dataclasses.replace(found, noise_KB=torch.stack([self.nelbo_times(u_B)[0] for u_B in levels_KB]))


def draw_bound(
    predict: Predict,
    tokens_BL: Tensor,
    valid_BL: Tensor,
    *,
    levels_KB: Sequence[Tensor],
    generator: RowGenerator,
    corrupt: Callable[[Tensor, RowGenerator], Tensor],
    scored: Callable[[Tensor, Tensor], Tensor],
    time: Callable[[Tensor], Tensor],
    losses: Callable[[Tensor, Tensor, Tensor, Tensor], TokenLosses],
) -> NelboDraws:
    """Draw a likelihood bound at K noise levels, which are the variable that it is integrated over, in float64.

    Args:
        levels_KB: K levels (B,), float64: times, or fractions of replaced tokens.
        corrupt: (level_B, generator) → x_t (B, L).
        scored: (x_t, valid_BL) → the scored positions (B, L).
        time: level_B → the time t_B that the model receives.
        losses: (logits_MV, targets_M, noisy_M, level_M) → `TokenLosses`, weighted by the integrand over the level.
    """
    found = []
    for number, level_B in enumerate(levels_KB):
        noisy_BL = corrupt(level_B, generator.fork(number))
        scored_BL = scored(noisy_BL, valid_BL)
        logits_MV = predict(noisy_BL, time(level_B).float(), scored_BL)
        row_M, targets_M = scored_BL.nonzero()[:, 0], tokens_BL[scored_BL]
        loss = losses(logits_MV, targets_M, noisy_BL[scored_BL], level_B[row_M])
        nothing_B = torch.zeros_like(level_B)
        found.append(
            (
                nothing_B.index_add(0, row_M, loss.weighted_M.double()),
                level_B,
                scored_BL.sum(dim=1).double(),
                nothing_B.index_add(0, row_M, (loss.best_M == targets_M).double()),
                nothing_B.index_add(0, row_M, loss.nll_M.double()),
            )
        )
    return NelboDraws(*(torch.stack(part) for part in zip(*found, strict=True)))


def stratified(draws: int, generator: RowGenerator) -> list[Tensor]:
    """Draw K numbers (B,) in (0, 1], float64, for each example: 1 − (u + k/K) mod 1, one in each of K equal cells."""
    u_B = generator.uniform()
    return [1 - (u_B + number / draws) % 1.0 for number in range(draws)]
