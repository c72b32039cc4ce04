"""Process of FlexMDM: tokens are inserted as [MASK], each at its own time, and unmasked later (arXiv:2509.01025).

From t = 1 (an empty text) to t = 0 (the clean text) a token of the text is missing until its insertion time, then
[MASK] until its unmasking time. The noisy text has no place for missing tokens: the model predicts how many are
missing in each gap. The paper's time is 1 − t, and its α and β are the fractions 1 − a and 1 − b below.

a(t) is the probability that a token is missing; b(t)/b(T) that a token inserted at time T is still masked. Both are
(α_0 − α_t)/(α_0 − α_1) of a mask schedule, so that they run from 0 to 1 whatever its ends are. The rates of insertion
and unmasking are a'/a and b'/b.

B examples, L positions, P = L + 1 gaps (gap p precedes token p, the last one follows the text), V vocabulary, M masks.
"""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.core import config
from mm_ldlm.diffusion.distributions import TokenLosses
from mm_ldlm.diffusion.masked import Masking
from mm_ldlm.diffusion.process import TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.schedules import MASK_SCHEDULES, LogLinear, MaskSchedule, SmallestTime


@config
class InsertionConfig(TextProcessConfig):
    """Parameters of insertion and unmasking.

    Attributes:
        schedule: of unmasking (β of the paper).
        insertion_schedule: of insertion (α of the paper).
        t_min: smallest time drawn in training.
    """

    fixed_length: ClassVar[bool] = False
    kind: str = "insertion"
    schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    insertion_schedule: Annotated[Any, MASK_SCHEDULES] = dataclasses.field(default_factory=LogLinear)
    t_min: SmallestTime = 1e-3

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Insertion":
        """Build the process for a tokenizer's ids."""
        return Insertion(self, vocabulary)


class Partial(NamedTuple):
    """Texts of which some tokens are missing and some masked."""

    tokens_BL: Tensor
    """The tokens that are not missing, in order, then pads"""
    targets_BL: Tensor
    """The clean token of each of them"""
    gaps_BP: Tensor
    """Number of missing tokens in each gap; 0 after the last gap of a text"""


class Insertion(Masking):
    """Insertion and unmasking of the tokens of a text (see the module)."""

    def __init__(self, config: InsertionConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.insertion = config.insertion_schedule.build()

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw x_t (B, L), which has fewer tokens than the text."""
        return self.delete(tokens_BL, valid_BL, t_B, generator).tokens_BL

    def delete(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Partial:
        """Draw the insertion and the unmasking time of every token, and return the texts at the times t_B."""
        t_B1, L = t_B.double()[:, None], tokens_BL.shape[1]
        unmasking_BL, insertion_BL = generator.uniform(L), generator.fork("insertion").uniform(L)
        kept_BL = valid_BL & (insertion_BL >= noise(self.insertion, t_B1))
        inserted_BL = time_of(self.insertion, insertion_BL)
        masked_BL = unmasking_BL * noise(self.schedule, inserted_BL) < noise(self.schedule, t_B1)
        noisy_BL = tokens_BL.masked_fill(masked_BL, self.mask_id).masked_fill(~kept_BL, self.pad_id)
        order_BL = (~kept_BL).long().argsort(dim=1, stable=True)
        gaps_BP = torch.zeros_like(torch.nn.functional.pad(tokens_BL, (0, 1)))
        gaps_BP = gaps_BP.scatter_add(1, kept_BL.long().cumsum(dim=1), (valid_BL & ~kept_BL).long())
        return Partial(noisy_BL.gather(1, order_BL), tokens_BL.gather(1, order_BL), gaps_BP)

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute b'/b·CE at M masked positions."""
        found = self.cross_entropy(logits_MV, targets_M)
        return found._replace(weighted_M=found.nll_M * rate(self.schedule, t_M))


def _ends(schedule: MaskSchedule, t: Tensor) -> tuple[Tensor, Tensor]:
    return schedule.mask_probability(torch.zeros_like(t)), schedule.mask_probability(torch.ones_like(t))


def noise(schedule: MaskSchedule, t: Tensor) -> Tensor:
    """Return a(t) = (α_0 − α_t)/(α_0 − α_1)."""
    low, high = _ends(schedule, t)
    return (schedule.mask_probability(t) - low) / (high - low)


def rate(schedule: MaskSchedule, t: Tensor) -> Tensor:
    """Return a'(t)/a(t)."""
    return -schedule.alpha_prime(t) / (schedule.mask_probability(t) - _ends(schedule, t)[0])


def time_of(schedule: MaskSchedule, level: Tensor) -> Tensor:
    """Return the time at which the noise is `level`, float64."""
    low, high = _ends(schedule, level)
    return schedule.time_of_mask_ratio(low + level * (high - low))


def chance(schedule: MaskSchedule, t: Tensor, s: Tensor) -> Tensor:
    """Return the probability 1 − noise(s)/noise(t) that what is missing (or masked) at t no longer is at s < t."""
    return torch.nan_to_num(1 - noise(schedule, s) / noise(schedule, t), nan=1.0)


def insertion_divergence(gaps: Tensor, log_counts: Tensor) -> Tensor:
    """Compute the Bregman divergence g − n + n·log(n/g) of the expected counts g = e^log_counts from the counts n.

    It is non-negative, and on average smallest where g is the expectation of n.
    """
    return log_counts.exp() - gaps + torch.xlogy(gaps, gaps) - gaps * log_counts


def insertion_entropy(longest: int) -> Tensor:
    """Compute C(n) (longest + 1,) float64, the mean of Σ log(size of the gap) over the insertions of n tokens.

    The order of insertion is random: the first token divides n − 1 others into j before and n − 1 − j after it, with j
    uniform, so that C(n) = log n + (2/n) Σ_{j<n} C(j), C(0) = 0.
    """
    found, total = [0.0], 0.0
    for n in range(1, longest + 1):
        found.append(float(torch.tensor(n).double().log()) + 2 / n * total)
        total += found[-1]
    return torch.tensor(found, dtype=torch.float64)
