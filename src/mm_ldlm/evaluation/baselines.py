"""Baselines of inversion: the nearest training sentence, and a bag of words regressed from the latent.

Both use the training split only. Their outputs are scored by the same `score_rows` as the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mm_ldlm.core.errors import EvaluationError


def nearest_training_rows(query_Nd: np.ndarray, train_Md: np.ndarray, *, block: int = 256) -> np.ndarray:
    """Find the training latent with the highest cosine to each query: (N,) rows.

    The sentence of that row is the output of a model that only memorises.
    """
    if len(train_Md) == 0:
        raise EvaluationError("The nearest-sentence baseline needs training latents, found none.")
    train_Md = train_Md / np.linalg.norm(train_Md, axis=1, keepdims=True)
    query_Nd = query_Nd / np.linalg.norm(query_Nd, axis=1, keepdims=True)
    return np.concatenate(
        [np.argmax(query_Nd[i : i + block] @ train_Md.T, axis=1) for i in range(0, len(query_Nd), block)]
    )


@dataclass(frozen=True)
class BagOfWords:
    """Ridge regression from latents to token presence and length; tokens are ordered by their mean position.

    Attributes:
        weight_dV, bias_V: scores of presence.
        length_weight_d, length_bias: regression of the length.
        place_V: mean relative position of each token in training (0 first, 1 last).
    """

    weight_dV: np.ndarray
    bias_V: np.ndarray
    length_weight_d: np.ndarray
    length_bias: float
    place_V: np.ndarray
    token_V: np.ndarray

    @classmethod
    def fit(cls, latents_Md: np.ndarray, tokens: Sequence[Sequence[int]], *, ridge: float = 1e-3) -> BagOfWords:
        """Fit in closed form, in float64; `ridge` is relative to the mean eigenvalue of the latents' covariance."""
        if len(latents_Md) != len(tokens) or len(tokens) == 0:
            raise EvaluationError(
                f"Bag of words: expected one latent per text, found {len(latents_Md)} latents and {len(tokens)} texts."
            )
        token_V, flat = np.unique(
            np.concatenate([np.asarray(row, dtype=np.int64) for row in tokens]), return_inverse=True
        )
        length_M = np.array([len(row) for row in tokens])
        row_of = np.repeat(np.arange(len(tokens)), length_M)
        present_MV = np.zeros((len(tokens), len(token_V)))
        present_MV[row_of, flat] = 1.0
        starts = np.concatenate([[0], np.cumsum(length_M)[:-1]])
        relative = (np.arange(len(flat)) - np.repeat(starts, length_M)) / np.maximum(
            1, np.repeat(length_M, length_M) - 1
        )
        place_V = np.bincount(flat, weights=relative, minlength=len(token_V)) / np.bincount(
            flat, minlength=len(token_V)
        )
        x_Md = np.asarray(latents_Md, dtype=np.float64)
        mean_d = x_Md.mean(axis=0)
        x_Md = x_Md - mean_d
        gram_dd = x_Md.T @ x_Md
        gram_dd += ridge * np.trace(gram_dd) / len(gram_dd) * np.eye(len(gram_dd))
        target = np.concatenate([present_MV, length_M[:, None]], axis=1)
        centre = target.mean(axis=0)
        weight = np.linalg.solve(gram_dd, x_Md.T @ (target - centre))
        bias = centre - mean_d @ weight
        return cls(weight[:, :-1], bias[:-1], weight[:, -1], float(bias[-1]), place_V, token_V)

    def predict(self, latents_Nd: np.ndarray) -> list[list[int]]:
        """Predict as many tokens as the regressed length: those with the highest scores, each once."""
        latents_Nd = np.asarray(latents_Nd, dtype=np.float64)
        length_N = np.clip(np.rint(latents_Nd @ self.length_weight_d + self.length_bias), 1, len(self.token_V)).astype(
            int
        )
        score_NV = latents_Nd @ self.weight_dV + self.bias_V
        rows = []
        for score_V, length in zip(score_NV, length_N, strict=True):
            best = np.argpartition(-score_V, length - 1)[:length]
            rows.append([int(t) for t in self.token_V[best[np.argsort(self.place_V[best], kind="stable")]]])
        return rows
