"""Hierarchical diffusion over tokens: token → cluster → [MASK]: HDLM, arXiv:2510.08632.

A token first becomes the id of its cluster (a group of words with similar meaning), then [MASK]. The reverse process
predicts the next finer scale: the cluster of a mask, and the word of a cluster. Both come from one distribution over
words, x_θ: the probability of a cluster is the sum over its words, and at a cluster x_θ is restricted to its words.

The clusters are an artifact of the data, the store "token_clusters". C clusters, V vocabulary, M positions.
"""

from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mm_ldlm.core import bounded, config
from mm_ldlm.diffusion.distributions import TokenLosses, categorical, normalise_
from mm_ldlm.diffusion.masked import copy_tokens
from mm_ldlm.diffusion.process import TextProcess, TextProcessConfig, Vocabulary
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.diffusion.times import antithetic


@config
class HdlmConfig(TextProcessConfig):
    """Parameters of hierarchical diffusion.

    Attributes:
        gamma: γ of α_t = (1−t)^γ, the expected fraction of tokens that are kept. A larger γ moves tokens to their
            clusters sooner. Outside 0.5 to 16 the fractions of tokens, clusters and masks near t = 0 and t = 1 are not
            exact in float64, and the NELBO is not a bound.
        t_min: times of training lie in [t_min, 1 − t_min], because the weights of the loss are unbounded at both ends.
    """

    stores: ClassVar[tuple[str, ...]] = ("token_clusters",)
    kind: str = "hdlm"
    gamma: Annotated[float, bounded(ge=0.5, le=16)] = 1.0
    t_min: Annotated[float, bounded(gt=0, lt=0.5)] = 1e-3

    def build(self, vocabulary: Vocabulary, **stores: Any) -> "Hdlm":
        """Build the process for a tokenizer's ids. The store `token_clusters` (V, 1) has the cluster
        of each id, −1 for no word.

        Raises:
            ConfigurationError: the clusters belong to another vocabulary.
        """
        return Hdlm(self, vocabulary, cluster_of_V=stores["token_clusters"].reshape(-1).long())


class Hdlm(TextProcess):
    """Tokens become clusters at rate γ/(1−t), clusters become [MASK] at rate 1/(1−t) (see `TextProcess`).

    Cluster k has the id `first_noise_id` + k.
    """

    cluster_of_V: Tensor
    """(V,) int64: the cluster of each word, −1 for [PAD] and [MASK]"""

    def __init__(self, config: HdlmConfig, vocabulary: Vocabulary, *, cluster_of_V: Tensor) -> None:
        super().__init__(config, vocabulary)
        self.gamma = config.gamma
        self.noise_ids = int(cluster_of_V.max()) + 1
        self.register_buffer("cluster_of_V", cluster_of_V, persistent=False)  # checkpoints have the store itself

    # -- training ---------------------------------------------------------------------------------------------------

    def times(self, u: float, index_B: Tensor, total: int) -> Tensor:
        """Draw low-discrepancy times (B,) from [t_min, 1 − t_min] over the global batch."""
        return self.t_min + (1 - 2 * self.t_min) * antithetic(u, index_B, total, 0.0)

    def corrupt(self, tokens_BL: Tensor, valid_BL: Tensor, t_B: Tensor, generator: RowGenerator) -> Tensor:
        """Draw each valid token, its cluster or [MASK] with probabilities α_t, c_t, m_t. Takes one draw."""
        uniform_BL = generator.uniform(tokens_BL.shape[1])
        at_B1 = Levels.at(t_B[:, None], gamma=self.gamma)
        masked_BL = (uniform_BL < at_B1.mask) & valid_BL
        coarse_BL = (uniform_BL < at_B1.mask + at_B1.cluster) & valid_BL & ~masked_BL
        words_BL = torch.where(valid_BL, tokens_BL, 0)  # [PAD] may lie beyond the vocabulary
        return torch.where(coarse_BL, self._cluster_ids(words_BL), tokens_BL).masked_fill(masked_BL, self.mask_id)

    def scored(self, noisy_BL: Tensor, valid_BL: Tensor) -> Tensor:
        """Select the positions that hold a cluster or [MASK]."""
        return ((noisy_BL == self.mask_id) | (noisy_BL >= self.first_noise_id)) & valid_BL

    def token_losses(self, logits_MV: Tensor, targets_M: Tensor, noisy_M: Tensor, t_M: Tensor) -> TokenLosses:
        """Compute the integrand of the CTMC bound (HDLM, closed-form ELBO) at M scored positions.

        At [MASK], m'_t/m_t · −log Σ over the words w of the target's cluster of x_θ(w); at a cluster, −α'_t/c_t times
        the cross-entropy within it.
        """
        cluster_of_V = self.cluster_of_V
        words_MV = logits_MV[..., : self.vocab_size].float().masked_fill(cluster_of_V < 0, -torch.inf)
        top_M1 = words_MV.detach().amax(dim=-1, keepdim=True)
        words_MV = words_MV - top_M1
        within_MV = words_MV.masked_fill(cluster_of_V != cluster_of_V[targets_M][:, None], -torch.inf)
        log_all_M, log_within_M = words_MV.logsumexp(dim=-1), within_MV.logsumexp(dim=-1)
        target_M = words_MV.gather(1, targets_M[:, None])[:, 0]
        at_cluster_M = noisy_M >= self.first_noise_id
        mask_weight_M, cluster_weight_M = weights(t_M, gamma=self.gamma)
        weighted_M = torch.where(
            at_cluster_M,
            cluster_weight_M.float() * (log_within_M - target_M),
            mask_weight_M.float() * (log_all_M - log_within_M),
        )
        nll_M = torch.where(at_cluster_M, log_within_M, log_all_M) - target_M
        with torch.no_grad():
            best_M = torch.where(at_cluster_M[:, None], within_MV, words_MV).argmax(dim=-1)
        return TokenLosses(weighted_M, nll_M, best_M, log_all_M + top_M1[:, 0])

    def initial_nll(self) -> None:
        """None: a cluster leaves fewer words than a mask."""
        return None

    # -- sampling ---------------------------------------------------------------------------------------------------

    def log_x0(self, logits_MV: Tensor, noisy_M: Tensor) -> Tensor:
        """Compute log x_θ (M, vocab_size) in float32: of the words of a cluster only, where x_t is a cluster.

        [MASK], [PAD] and ids ≥ vocab_size get no mass, and a token copies itself.
        """
        cluster_of_V = self.cluster_of_V
        words_MV = logits_MV[..., : self.vocab_size].float().masked_fill(cluster_of_V < 0, -torch.inf)
        at_cluster_M = noisy_M >= self.first_noise_id
        outside_MV = at_cluster_M[:, None] & (cluster_of_V != (noisy_M - self.first_noise_id)[:, None])
        words_MV = normalise_(words_MV.masked_fill_(outside_MV, -torch.inf))
        return copy_tokens(words_MV, noisy_M, kept_M=~at_cluster_M & (noisy_M != self.mask_id))

    def reverse_step(
        self, log_x0_MV: Tensor, noisy_M: Tensor, *, t_M: Tensor, s_M: Tensor, uniform_M2: Tensor
    ) -> Tensor:
        """Draw x_s from the exact posterior q(x_s | x_t, x_0) under x_θ.

        A mask becomes a cluster or, in one finite step, already a word; a cluster becomes one of its words.
        """
        token_M, cluster_M = reverse_probabilities(noisy_M == self.mask_id, t_M=t_M, s_M=s_M, gamma=self.gamma)
        drawn_M = categorical(log_x0_MV.softmax(dim=-1, dtype=torch.float64), uniform_M2[:, 1])
        level_M, coarse_M = uniform_M2[:, 0], self.scored(noisy_M, torch.ones_like(noisy_M, dtype=torch.bool))
        coarser_M = torch.where(level_M < token_M + cluster_M, self._cluster_ids(drawn_M), noisy_M)
        return torch.where(coarse_M, torch.where(level_M < token_M, drawn_M, coarser_M), noisy_M)

    def _cluster_ids(self, words: Tensor) -> Tensor:
        return self.first_noise_id + self.cluster_of_V[words]


# -- probabilities of the process -------------------------------------------------------------------------------------

_LAST = 1 - 2.0**-53
"""The largest float64 below 1: log(1 − t) is finite up to here."""
_SERIES_BELOW = 1e-3
"""Below this t, 1 − α_t − c_t loses digits and its Taylor series (relative error below 1e-7) is used."""


class Levels(NamedTuple):
    """The expected fractions of tokens, clusters and masks at a time, float64; their sum is 1."""

    token: Tensor
    """α_t = (1−t)^γ"""
    cluster: Tensor
    """c_t = γ((1−t) − (1−t)^γ)/(γ−1), at γ = 1 −(1−t)log(1−t)"""
    mask: Tensor
    """m_t = 1 − α_t − c_t"""

    @classmethod
    def at(cls, t: Tensor, *, gamma: float) -> "Levels":
        """Compute the fractions at times t ∈ [0, 1], elementwise."""
        t = t.double()
        alpha = (gamma * torch.log1p(-t)).exp()
        cluster = torch.where(t < 1, (1 - t) * mask_rate(t, gamma=gamma), 0.0)
        series = gamma * t.square() * (1 / 2 - (gamma - 2) * t / 6 + (gamma - 2) * (gamma - 3) * t.square() / 24)
        return cls(alpha, cluster, torch.where(t < _SERIES_BELOW, series, 1 - alpha - cluster))


def mask_rate(t: Tensor, *, gamma: float) -> Tensor:
    """Compute m'_t = c_t/(1−t) = γ(1 − (1−t)^(γ−1))/(γ−1), at γ = 1 −log(1−t); float64, finite at t = 1."""
    log_u = torch.log1p(-t.double().clamp(max=_LAST))
    return -log_u if gamma == 1 else -gamma / (gamma - 1) * torch.expm1((gamma - 1) * log_u)


def weights(t: Tensor, *, gamma: float) -> tuple[Tensor, Tensor]:
    """Compute the weights m'_t/m_t of a mask and −α'_t/c_t of a cluster, float64: the rates of the true reverse
    process, mask → cluster and cluster → token. Times are in (0, 1]."""
    t = t.double()
    u = 1 - t.clamp(max=_LAST)
    at = Levels.at(t.clamp(max=_LAST), gamma=gamma)
    rate = mask_rate(t, gamma=gamma)
    tiny = torch.finfo(torch.float64).tiny
    return rate / at.mask.clamp(min=tiny), gamma * u.pow(gamma - 1) / at.cluster.clamp(min=tiny)


def reverse_probabilities(masked: Tensor, *, t_M: Tensor, s_M: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Compute P(token at s), P(cluster at s) of a mask (where `masked`) or a cluster at t > s, given x_0; float64.

    From a mask: m_s/m_t stays, c_s (1 − (1−t)/(1−s))/m_t becomes its cluster, the rest its token. From a cluster:
    c_s (1−t)/((1−s) c_t) stays, the rest becomes its token.
    """
    t, s = t_M.double(), s_M.double()
    at_t, at_s = Levels.at(t, gamma=gamma), Levels.at(s, gamma=gamma)
    to_cluster = at_s.cluster * (t - s) / (1 - s) / at_t.mask
    stays = mask_rate(s, gamma=gamma) / mask_rate(t, gamma=gamma)
    cluster = torch.where(masked, to_cluster, stays)
    return torch.where(masked, 1 - at_s.mask / at_t.mask - to_cluster, 1 - stays), cluster
