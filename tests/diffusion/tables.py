"""Texts of two words with a known joint distribution, and everything about their diffusion by enumeration.

The state of a token is one of the words 0 … V−1 or V, which stands for [MASK].
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mm_ldlm.diffusion.schedules import MaskSchedule
from mm_ldlm.families.uniform.gidd import GiddConfig
from mm_ldlm.families.uniform.interpolating import Interpolating, Noise
from mm_ldlm.families.uniform.uniform import UniformConfig

V, MASK, PAD = 3, 3, 4
JOINT = torch.tensor([[0.30, 0.05, 0.05], [0.02, 0.20, 0.08], [0.10, 0.05, 0.15]], dtype=torch.float64)
PAIRS = torch.cartesian_prod(torch.arange(V), torch.arange(V))
STATES = torch.cartesian_prod(torch.arange(V + 1), torch.arange(V + 1))
IDS = {"vocab_size": V + 2, "pad_id": PAD, "mask_id": MASK}


def uniform(name: Any = "log_linear", epsilon: float = 1e-3, **settings: Any) -> Interpolating:
    return UniformConfig(schedule=MaskSchedule(name=name, epsilon=epsilon), **settings).build(**IDS)


def gidd(p_uniform: float = 0.2, loss_weighting: Any = "elbo", **settings: Any) -> Interpolating:
    return GiddConfig(p_uniform=p_uniform, loss_weighting=loss_weighting, **settings).build(**IDS)


PROCESSES = {
    "uniform": uniform(),
    "uniform, all noise": uniform(epsilon=0.0),
    "uniform cosine": uniform("cosine"),
    "uniform geometric": uniform("geometric"),
    "gidd": gidd(),
    "gidd 0.5, gamma 2": gidd(0.5, gamma=2.0),
    "gidd without words": gidd(0.0),
}


def forward(noise: Noise) -> Tensor:
    """q(x_t | x_0) as a matrix (…, V, V + 1)."""
    alpha, word, mask = (x[..., None, None] for x in noise[:3])
    words = alpha * torch.eye(V, dtype=torch.float64) + word
    return torch.cat([words, mask.expand(*words.shape[:-1], 1)], dim=-1)


def joint_of_states(noise: Noise) -> Tensor:
    """p(x_0, x_t) of two words, (V, V, V + 1, V + 1), at one time."""
    q = forward(noise)
    return JOINT[:, :, None, None] * q[:, None, :, None] * q[None, :, None, :]


def best_logits(process: Interpolating, noisy_BL: Tensor, t_B: Tensor) -> Tensor:
    """log p(x_0 of a token | x_t of the other token) (B, 2, V + 2), the best x_θ; the last two ids are not words."""
    q_BVS = forward(process.noise(t_B))
    index = noisy_BL[:, None, :].expand(-1, V, -1).clamp_max(V)
    seen_BV2 = q_BVS.gather(2, index)
    seen_BV2 = torch.where(seen_BV2.sum(1, keepdim=True) > 0, seen_BV2, 1.0)  # a pad or a foreign [MASK] tells nothing
    first = torch.einsum("ab,nb->na", JOINT, seen_BV2[:, :, 1])
    second = torch.einsum("ab,na->nb", JOINT, seen_BV2[:, :, 0])
    both = torch.stack([first, second], dim=1)
    logits = (both / both.sum(-1, keepdim=True)).log().float()
    return torch.nn.functional.pad(logits, (0, 2), value=30.0)


@functools.cache
def times(nodes: int = 200) -> tuple[Tensor, Tensor]:
    """Nodes and weights of an integral over t from 0 to 1, dense at both ends."""
    x, weights = (torch.tensor(a) for a in np.polynomial.legendre.leggauss(nodes))
    u = (x + 1) / 2
    return u**4 * (35 - 84 * u + 70 * u**2 - 20 * u**3), weights / 2 * 140 * (u * (1 - u)) ** 3


def exact_nelbo(process: Interpolating, model: Any) -> Tensor:
    """The integral of the loss (9,) of each pair: every x_t enumerated, `model(noisy_BL, t_B)` → logits (B, 2, V)."""
    t_K, weight_K = times()
    K, S = len(t_K), len(STATES)
    t_B, noisy_BL = t_K.repeat_interleave(S), STATES.repeat(K, 1)
    logits = model(noisy_BL, t_B)
    q_KVS = forward(process.noise(t_K))
    bound = torch.zeros(len(PAIRS), dtype=torch.float64)
    for number, text in enumerate(PAIRS):
        chance_KS = q_KVS[:, text[0]][:, STATES[:, 0]] * q_KVS[:, text[1]][:, STATES[:, 1]]
        for place in (0, 1):
            scored = process.scored(noisy_BL[:, place], torch.ones_like(t_B).bool())
            target = text[place].expand(K * S)
            losses = process.token_losses(logits[:, place].clone(), target, noisy_BL[:, place], t_B)
            found_KS = torch.where(scored & (chance_KS.flatten() > 0), losses.weighted_M.double(), 0.0).view(K, S)
            bound[number] += (weight_K[:, None] * chance_KS * found_KS).sum()
    return bound
