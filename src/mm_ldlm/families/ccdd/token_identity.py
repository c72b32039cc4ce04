"""Information about a token in its noised state, which a joint diffusion makes available to the prediction of the text.

A state of the clean sequence nearly determines its token, so that the text loss given noised states says little about
the model of the text. `identity_bits` measures a lower bound of the mutual information between a token and its state at
a noise level, I(X; Z_t) ≥ H(X) − CE, by the held-out cross-entropy CE of a Gaussian classifier with one mean for each
token and one covariance for all. Other states of the text, which the model also reads, contain still more.

n tokens, d dimensions of a state, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.data.dataset import Dataset
from mm_ldlm.diffusion.schedules import GaussianSchedule
from mm_ldlm.families.ccdd import token_states

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_SHARPNESS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Factors of the log-likelihood, one of which is chosen on held-out tokens; 0 is the frequency of the tokens."""
_ROWS = 2048


@dataclasses.dataclass(frozen=True)
class IdentityBits:
    """Information of a state about its token at one noise level."""

    signal: float
    noise: float
    bits: float
    """H(X) − CE, a lower bound of the mutual information"""
    entropy_bits: float
    """H(X): cross-entropy of the held-out tokens under the token frequencies of the fit, without a state"""
    accuracy: float
    """Fraction of held-out tokens that the classifier predicts correctly"""


class Classifier:
    """Gaussian classifier fitted to clean states; its means and covariance at every noise level have a closed form."""

    def __init__(self, states_nd: Floats, ids_n: Ints, *, vocab_size: int) -> None:
        count_V = np.bincount(ids_n, minlength=vocab_size).astype(np.float64)
        self.log_prior_V = np.log((count_V + 0.5) / (count_V.sum() + 0.5 * vocab_size))
        sum_Vd = np.zeros((vocab_size, states_nd.shape[1]))
        np.add.at(sum_Vd, ids_n, states_nd)
        mean_Vd = sum_Vd / np.maximum(count_V, 1)[:, None]
        inner_nd = states_nd - mean_Vd[ids_n]
        free = max(len(ids_n) - int((count_V > 0).sum()), 1)
        values, axes = np.linalg.eigh(inner_nd.T @ inner_nd / free)
        self.axes_dd, self.variance_d = axes, np.maximum(values, 1e-4)
        # A mean of few states is uncertain, so it is shrunk towards the mean of all tokens, 0.
        self.mean_Vd = (sum_Vd / (count_V + 0.5)[:, None]) @ axes

    def log_likelihood(self, noised_nd: Floats, *, signal: float, noise: float) -> Floats:
        """Compute log p(state | token) (n, V), up to a constant of each row."""
        precision_d = 1 / (signal**2 * self.variance_d + noise**2)
        mean_Vd = signal * self.mean_Vd
        return (noised_nd @ self.axes_dd * precision_d) @ mean_Vd.T - 0.5 * (mean_Vd**2 @ precision_d)


def identity_bits(
    classifier: Classifier, states_nd: Floats, ids_n: Ints, *, signal: float, noise: float, seed: int = 0
) -> IdentityBits:
    """Measure the information of held-out states z = signal·z_0 + noise·ε about their tokens.

    The even tokens choose the sharpness of the classifier, the odd ones are measured.
    """
    noised_nd = signal * states_nd + noise * np.random.default_rng(seed).standard_normal(states_nd.shape)
    log_p_Sn = np.empty((len(_SHARPNESS), len(ids_n)))
    right_n = np.zeros(len(ids_n), bool)
    for start in range(0, len(ids_n), _ROWS):
        part = slice(start, start + _ROWS)
        likelihood_nV = classifier.log_likelihood(noised_nd[part], signal=signal, noise=noise)
        right_n[part] = (classifier.log_prior_V + likelihood_nV).argmax(1) == ids_n[part]
        for number, sharpness in enumerate(_SHARPNESS):
            score_nV = classifier.log_prior_V + sharpness * likelihood_nV
            score_nV -= score_nV.max(1, keepdims=True)
            chosen_n = np.take_along_axis(score_nV, ids_n[part, None], 1)[:, 0]
            log_p_Sn[number, part] = chosen_n - np.log(np.exp(score_nV).sum(1))
    best = int(log_p_Sn[:, ::2].mean(1).argmax())
    entropy = -classifier.log_prior_V[ids_n[1::2]].mean() / np.log(2)
    cross_entropy = -log_p_Sn[best, 1::2].mean() / np.log(2)
    return IdentityBits(signal, noise, entropy - cross_entropy, float(entropy), float(right_n[1::2].mean()))


def measure(
    dataset: Dataset,
    *,
    schedule: GaussianSchedule,
    times: Sequence[float] = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    tokens: int = 20_000,
    split: str = "validation",
    seed: int = 0,
) -> dict[float, IdentityBits]:
    """Measure the standardised token states of a dataset at each timestep: fit on `train`, measure on `split`.

    Raises:
        StoreError: the dataset has no token states.
    """
    vocab_size = dataset.tokenizer.vocab_size
    classifier = Classifier(*_draw(dataset, "train", 2 * tokens, seed), vocab_size=vocab_size)
    states_nd, ids_n = _draw(dataset, split, tokens, seed)
    found = {}
    for t in times:
        signal, noise = (scale.item() for scale in schedule.scales(torch.tensor(t, dtype=torch.float64)))
        found[t] = identity_bits(classifier, states_nd, ids_n, signal=signal, noise=noise, seed=seed)
    return found


def _draw(dataset: Dataset, split: str, count: int, seed: int) -> tuple[Floats, Ints]:
    """Read the states and ids of about `count` tokens, of records drawn without replacement."""
    records = np.random.default_rng(seed).permutation(dataset.rows(split))
    starts = token_states.starts(dataset.tokens.gather("length", slice(None)).to_numpy())
    lengths = starts[records + 1] - starts[records]
    records = np.sort(records[: int(np.searchsorted(np.cumsum(lengths), count)) + 1])
    field = dataset.field("token_states")
    raw_nd = field.column.take(field.rows(records))
    ids, _ = dataset.tokens.lists("input_ids").take(records)
    return dataset.require("state_normaliser").standardise(raw_nd.astype(np.float64)), ids.astype(np.int64)
