"""Texts of two words with a known joint distribution, and everything about their diffusion by enumeration.

W words, I ids that a position may hold (words, [MASK], ids of noise), S = I² noisy texts, N = W² texts, B texts.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mm_ldlm.diffusion.process import TextProcess, Vocabulary

VOCABULARY = Vocabulary(vocab_size=6, pad_id=5, mask_id=0)
WORDS = torch.tensor(VOCABULARY.word_ids)
W, V, MASK = len(WORDS), VOCABULARY.vocab_size, VOCABULARY.mask_id
TEXTS = torch.cartesian_prod(WORDS, WORDS)


def _joint() -> Tensor:
    """Draw probabilities (W, W) that are neither equal nor independent."""
    draws_WW = torch.rand(W, W, generator=torch.Generator().manual_seed(3), dtype=torch.float64).square() + 0.02
    return draws_WW / draws_WW.sum()


JOINT = _joint()
NLL = -JOINT.flatten().log()


class Law:
    """What a process does to one word, in closed form, and what the best model of `JOINT` answers."""

    continuous = True
    """Whether the bound is an integral over time"""

    def marginal(self, process: Any, t: Tensor) -> Tensor:
        """q(x_t | x_0) (…, W, I), float64."""
        raise NotImplementedError

    def transition(self, process: Any, s: Tensor, t: Tensor) -> Tensor:
        """q(x_t | x_s) (I, I) at two times 0 < s < t."""
        raise NotImplementedError

    def best(self, process: Any, others_BLW: Tensor, q_BWI: Tensor, own_BLW: Tensor) -> Tensor:
        """The best output (B, L, W), from p(x_0, the other noisy token), q(x_t | x_0) and q(own noisy token | x_0)."""
        return (others_BLW * own_BLW).log()

    def bound(self, process: Any) -> Tensor:
        """The NELBO (N,) of the best model."""
        return NLL


class Interpolation(Law):
    """α_t x_0 + β_t π_t: `noise` takes a process and times (…) and returns α_t (…) and β_t π_t (…, I), float64."""

    def __init__(self, noise: Callable[[Any, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.noise = noise

    def marginal(self, process: Any, t: Tensor) -> Tensor:
        alpha, replaced_I = self.noise(process, t)
        return alpha[..., None, None] * torch.eye(W, replaced_I.shape[-1]).double() + replaced_I[..., None, :]

    def transition(self, process: Any, s: Tensor, t: Tensor) -> Tensor:
        (alpha_s, replaced_s), (alpha_t, replaced_t) = self.noise(process, s), self.noise(process, t)
        kept = alpha_t / alpha_s
        return kept * torch.eye(len(replaced_t)).double() + replaced_t - kept * replaced_s


def masking(process: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    """The noise of a process that only masks."""
    masked = 1 - process.mask_schedule.alpha(t)
    return 1 - masked, torch.cat([masked.new_zeros(*masked.shape, W), masked[..., None]], dim=-1)


def replacing(process: Any, t: Tensor) -> tuple[Tensor, Tensor]:
    """The noise of a process that draws words uniformly, with a `schedule`."""
    replaced = 1 - process.schedule.alpha(t)
    each = (replaced / W)[..., None].expand(*replaced.shape, W)
    return 1 - replaced, torch.cat([each, torch.zeros_like(each[..., :1])], dim=-1)


class Enumeration:
    """All noisy texts of a process."""

    def __init__(self, process: TextProcess, law: Law) -> None:
        self.process, self.law = process, law
        first = process.first_noise_id
        self.ids_I = torch.cat([WORDS, torch.tensor([MASK]), torch.arange(first, first + process.noise_ids)])
        self.index_of_id = torch.zeros(first + process.noise_ids, dtype=torch.long)
        self.index_of_id[self.ids_I] = torch.arange(len(self.ids_I))
        self.states_SL = torch.cartesian_prod(self.ids_I, self.ids_I)

    def seen(self, noisy_BL: Tensor, t_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """p(x_0, the other noisy token) (B, L, W), q(x_t | x_0) (B, W, I) and q(own noisy token | x_0) (B, L, W)."""
        q_BWI = self.law.marginal(self.process, t_B.double())
        index_BWL = self.index_of_id[noisy_BL][:, None].expand(-1, W, -1)
        own_BLW = q_BWI.gather(2, index_BWL).mT
        others_BLW = torch.stack([own_BLW[:, 1] @ JOINT.T, own_BLW[:, 0] @ JOINT], dim=1)
        return others_BLW, q_BWI, own_BLW

    def output(self, noisy_BL: Tensor, t_B: Tensor) -> Tensor:
        """What the best model answers (B, L, V); nonsense where an id is no word."""
        others_BLW, q_BWI, own_BLW = self.seen(noisy_BL, t_B)
        found_BLV = torch.full((*noisy_BL.shape, V), 9.0, dtype=torch.float64)
        found_BLV[..., WORDS] = self.law.best(self.process, others_BLW, q_BWI, own_BLW)
        return found_BLV

    def chances(self, t: float) -> Tensor:
        """p(x_t) (S,)."""
        q_WI = self.law.marginal(self.process, torch.tensor(t, dtype=torch.float64))
        return (q_WI.T @ JOINT @ q_WI).flatten()

    def posterior(self, s: float, t: float) -> Tensor:
        """p(x_s of the first word | x_t of both) (S, I), NaN for impossible x_t."""
        s_, t_ = (torch.tensor(x, dtype=torch.float64) for x in (s, t))
        q_t = self.law.marginal(self.process, t_)
        if s == 0:
            q_s = torch.eye(W, len(self.ids_I)).double()
            step_II = torch.nn.functional.pad(q_t, (0, 0, 0, len(self.ids_I) - W))
        else:
            q_s, step_II = self.law.marginal(self.process, s_), self.law.transition(self.process, s_, t_)
        first_S, second_S = self.index_of_id[self.states_SL].unbind(1)
        others_SW = q_t[:, second_S].T @ JOINT.T
        joint_SI = (others_SW @ q_s) * step_II[:, first_S].T
        return joint_SI / joint_SI.sum(dim=1, keepdim=True)

    def integral(self, nodes: int = 200) -> Tensor:
        """∫ E[Σ over the scored positions of `elbo_losses`] dt (N,) of the best model, by quadrature."""
        x_K, weight_K = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(nodes))
        y_K = (x_K + 1) / 2
        u_K = y_K**4 * (35 - 84 * y_K + 70 * y_K**2 - 20 * y_K**3)  # dense at both ends
        t_K, slope_K = self.process.nelbo_times(u_K)
        weight_K = weight_K / 2 * 140 * (y_K * (1 - y_K)) ** 3 * slope_K
        K, S = nodes, len(self.states_SL)
        t_B, noisy_BL = t_K.repeat_interleave(S), self.states_SL.repeat(K, 1)
        seen_BLW, output_BLV = self.seen(noisy_BL, t_B)[2].view(K, S, 2, W), self.output(noisy_BL, t_B)
        output_BLV = output_BLV.nan_to_num(nan=0.0).clamp_min(-60).float()
        scored_BL = self.process.scored(noisy_BL, torch.ones_like(noisy_BL, dtype=torch.bool))
        losses_BLW = torch.zeros(K * S, 2, W, dtype=torch.float64)
        for place, target in itertools.product(range(2), range(W)):
            found = self.process.elbo_losses(
                output_BLV[:, place].clone(), WORDS[target].expand(K * S), noisy_BL[:, place], t_B
            )
            losses_BLW[:, place, target] = torch.where(scored_BL[:, place], found.weighted_M.double(), 0.0)
        losses_KSLW = torch.where(seen_BLW > 0, losses_BLW.view(K, S, 2, W), 0.0)
        first, second = (torch.einsum(
            "k,ksa,ksb->ab", weight_K, *(seen_BLW[:, :, place] * (losses_KSLW[:, :, place] if place == own else 1)
                                         for place in range(2))
        ) for own in range(2))  # fmt: skip
        return (first + second).flatten()
