"""Interface of diffusion processes over tokens: corruption, loss, reverse step, prior and NELBO.

Objectives, samplers and scoring share one `TextProcess`, so they work for every process. Nothing outside a process
assumes that noise is [MASK]. Absorbing diffusion (`masked.py`) is one process.

B examples, L positions, V vocabulary, M positions out of B·L whose logits are needed, K draws. α_t is the fraction of
tokens kept at time t; 0 is clean, 1 is all noise.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from mm_ldlm.core import Kinds, NonNegativeInt, PositiveInt, config
from mm_ldlm.diffusion.distributions import TokenLosses, forbid_, normalise_, token_loss
from mm_ldlm.diffusion.nelbo import Likelihood, Predict, integrate
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.diffusion.times import antithetic, stratified


@config
class Vocabulary:
    """Ids of the tokens of a text."""

    vocab_size: PositiveInt
    """Token ids are 0 .. vocab_size - 1, including the special ones; other ids are never predicted."""
    pad_id: NonNegativeInt
    mask_id: NonNegativeInt
    """Marks a position that is to be written; the noise of absorbing diffusion."""

    @property
    def first_noise_id(self) -> int:
        """The first id after the ids of the tokenizer."""
        return max(self.vocab_size, self.pad_id + 1, self.mask_id + 1)

    @property
    def word_ids(self) -> list[int]:
        """Ids that can occur in a text: all but [PAD] and [MASK]."""
        return [i for i in range(self.vocab_size) if i not in (self.pad_id, self.mask_id)]


class TextProcessConfig(Protocol):
    """A text process as parameters; see `TEXT_PROCESSES`. The defaults fit most processes.

    Its properties decide which samplers fit the process, before there are data.
    """

    kind: str
    """Name of the process, as in the parameters"""
    stores: ClassVar[tuple[str, ...]] = ()
    """Stores of the dataset that the process is made from"""
    only_masks: ClassVar[bool] = False
    """Whether [MASK] is the only noise and unmasked tokens are final; such a process has a `mask_schedule`."""
    fixed_length: ClassVar[bool] = True
    """Whether a canvas fixes the number of tokens; otherwise only samplers of the process itself fit"""
    revises: ClassVar[bool] = False
    """Whether noise includes words, so that a written token may change again"""
    predicts_scores: ClassVar[bool] = False
    """Whether the model's output is log-scores instead of logits of x_0, which `x0_logits` and `score_step` read"""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, **stores: Any) -> "TextProcess":
        """Build the process for a tokenizer's ids. Each store comes as an argument of its name: (rows, d), all rows.

        Raises:
            ConfigurationError: a store does not fit the tokenizer.
        """


class TextProcess(nn.Module, ABC):
    """A noising process q(x_t | x_0) over the tokens of a text, and its reverse.

    Pads are never corrupted, never scored and never drawn. The defaults fit a process whose noise is [MASK].
    A process may have parameters, or a schedule with parameters: the objective that builds it holds them.
    """

    noise_ids: int = 0
    """Number of ids that only noise has, from `first_noise_id` on. The model reads them and never predicts them."""

    def __init__(self, config: Any, vocabulary: Vocabulary) -> None:
        """`config` is a `TextProcessConfig`; its `t_min`, if it has one, is the smallest time that `times` draws."""
        super().__init__()
        self.traits: Any = config
        self.t_min: float = getattr(config, "t_min", 1e-3)
        self.vocabulary = vocabulary
        self.vocab_size, self.pad_id, self.mask_id = vocabulary.vocab_size, vocabulary.pad_id, vocabulary.mask_id
        self.first_noise_id, self.any_word = vocabulary.first_noise_id, vocabulary.word_ids[0]

    @property
    def mask_schedule(self) -> MaskSchedule | None:
        """α_t of a process with `traits.only_masks`, which samplers that choose the order of unmasking need."""
        return None

    # -- training ---------------------------------------------------------------------------------------------------

    def times(self, u: float, index_B: Tensor, total: int) -> Tensor:
        """Draw the training times t (B,) of the examples at `index_B` of a global batch of `total` examples.

        `u` is one uniform number that all ranks share. By default times are low-discrepancy in [t_min, 1].
        """
        return antithetic(u, index_B, total, self.t_min)

    @abstractmethod
    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_t (B, L) from q(x_t | x_0) at the valid positions; the others stay as they are."""

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the valid positions (B, L) whose logits the loss and the reverse step need; by default the masks."""
        return (noisy_BL == self.mask_id) & valid_BL

    @abstractmethod
    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute the loss at M scored positions. The logits may be overwritten."""

    def cross_entropy(self, logits_MV: Tensor, targets_M: Tensor) -> TokenLosses:
        """Compute −log x_θ(target) under SUBS, see `distributions.token_loss`; the logits are overwritten."""
        return token_loss(
            logits_MV, targets_M, mask_id=self.mask_id, pad_id=self.pad_id, vocab_size=self.vocab_size
        )  # fmt: skip

    def initial_nll(self) -> float | None:
        """−log x_θ(target) of a model whose logits are all equal; None where it depends on x_t."""
        return math.log(len(self.vocabulary.word_ids))

    # -- sampling ---------------------------------------------------------------------------------------------------

    def prior(self, tokens_BL: Tensor, open_BL: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_1 (B, L) at the open positions; the others keep their tokens. By default x_1 is [MASK]."""
        return tokens_BL.masked_fill(open_BL, self.mask_id)

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, vocab_size), float32: normalised, and −inf where an id is impossible given x_t.

        By default [MASK], [PAD] and ids ≥ vocab_size are impossible. The logits may be overwritten.
        """
        words_MV = logits_MV[..., : self.vocab_size].float()
        return normalise_(forbid_(words_MV, mask_id=self.mask_id, pad_id=self.pad_id))

    @abstractmethod
    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Draw x_s (M,) from Σ over x_0 of q(x_s | x_t, x_0) p_θ(x_0 | x_t), in float64; at s = 0 no noise is left.

        p_θ(x_0 | x_t) is x_θ, or what the process makes of it, such as q(x_t | x_0) x_θ(x_0). `log_x0_MV` may be
        unnormalised (after temperature or top-k). `uniform_M2` are two float64 numbers in (0, 1) for each position: one
        decides whether its token changes, the other to which token.
        """

    def x0_logits(self, output_MV: Tensor, noisy_M: Tensor, t_M: Tensor) -> Tensor:
        """Turn the model's output at time t into the logits that `log_x0` takes; the output itself by default.

        A process whose model predicts scores leaves the output as it is, because `score_step` reads it afterwards.
        """
        return output_MV

    def score_step(self, output_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor) -> Tensor:
        """Draw x_s (M,) as `reverse_step` does, from the model's output itself; by default from its x_θ.

        Scores contain more than x_θ does, which is normalised. Temperature, top-k and top-p act on x_θ, so samplers
        take this step without them, and `reverse_step` with them. Guidance acts on the scores themselves.
        """
        log_x0_MV = self.log_x0(self.x0_logits(output_MV, noisy_M, t_M), noisy_M)
        return self.reverse_step(log_x0_MV, noisy_M, t_M=t_M, s_M=s_M, uniform_M2=uniform_M2)

    # -- likelihood -------------------------------------------------------------------------------------------------

    def nelbo_times(self, u_B: Tensor) -> tuple[Tensor, Tensor]:
        """Turn u (B,) ∈ (0, 1] into the times t(u) of the NELBO and dt/du; other processes choose a better variable."""
        return u_B, torch.ones_like(u_B)

    def nelbo(
        self, predict: Predict, tokens_BL: Tensor, valid_BL: Tensor, *, draws: int, generator: RowGenerator
    ) -> Likelihood:
        """Draw the NELBO of each text `draws` times, at low-discrepancy u_k = 1 − (u + k/K) mod 1.

        Integrates `elbo_losses` over t(u) from 0 to 1 (`nelbo_times`). This integral is the entire NELBO if x_1 follows
        the prior exactly and x_0 is the clean text; other processes override this method and add their terms.
        """
        points = [self.nelbo_times(u_B) for u_B in stratified(draws, generator.fork("time"))]
        return integrate(
            self, predict, tokens_BL, valid_BL, [t_B for t_B, _ in points], generator,
            slopes_KB=[slope_B for _, slope_B in points],
        )  # fmt: skip

    def elbo_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute the integrand of the NELBO over time; by default the loss of training."""
        return self.token_losses(logits_MV, targets_M, noisy_M, t_M)


TEXT_PROCESSES = Kinds(
    "text process",
    {"absorbing": "mm_ldlm.diffusion.masked:AbsorbingConfig"},
    group="text_processes",
    interface=TextProcessConfig,
)
