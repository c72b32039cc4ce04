"""Fit the map of an adapter: ridge regression, a reduced rank of it, or an orthogonal map, chosen on held-out pairs.

n pairs, m dimensions of the other encoder, d dimensions of the run's, r axes.
"""

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import SamplingError
from mm_ldlm.data.latents.normaliser import Normaliser, norms, typical_of
from mm_ldlm.data.latents.recognition import Matrix, Signature, unit
from mm_ldlm.extras.align.adapter import About, Adapter

LEAST = 50
"""Smallest number of pairs"""
HELD_OUT = 0.2
"""Fraction of the pairs that choose the map; the chosen one is then fitted on all pairs"""
PENALTIES = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 10.0)
RANKS = (16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kind of map M (m, d) between centred vectors."""

    kind: Literal["ridge", "low_rank", "orthogonal"]
    penalty: float = 0.0
    """Of ridge regression, relative to the mean variance of the axes of x"""
    rank: int | None = None
    """Number of axes of the mapped vectors that are kept"""

    def __str__(self) -> str:
        given = {"penalty": self.penalty or None, "rank": self.rank}
        shown = ", ".join(f"{name} {value:g}" for name, value in given.items() if value is not None)
        return self.kind + (shown and f" ({shown})")


class Pairs:
    """Centred vectors x (n, m) and y (n, d) of the same texts, and the principal axes of x."""

    def __init__(self, x_nm: Matrix, y_nd: Matrix) -> None:
        self.mean_m, self.bias_d = x_nm.mean(axis=0), y_nd.mean(axis=0)
        self.x_nm, self.y_nd = x_nm - self.mean_m, y_nd - self.bias_d
        wide = len(x_nm) < x_nm.shape[1]
        values, axes = np.linalg.eigh(self.x_nm @ self.x_nm.T if wide else self.x_nm.T @ self.x_nm)
        used = values > 1e-10 * values.max()
        self.values_r, axes = values[used], axes[:, used]
        self.axes_mr = self.x_nm.T @ axes / np.sqrt(self.values_r) if wide else axes
        self.cross_rd = self.axes_mr.T @ (self.x_nm.T @ self.y_nd)

    def fit(self, choice: Choice) -> Matrix:
        """Compute the map M (m, d) of least squares within a class of maps."""
        if choice.kind == "orthogonal":
            left, size, right = np.linalg.svd(self.axes_mr @ self.cross_rd, full_matrices=False)
            return np.asarray(left @ right * (size.sum() / self.values_r.sum()))
        shrunk_r = self.values_r + choice.penalty * self.values_r.mean()
        matrix_md = self.axes_mr @ (self.cross_rd / shrunk_r[:, None])
        if choice.rank is not None:
            made_nd = self.x_nm @ matrix_md
            kept_dr = np.linalg.eigh(made_nd.T @ made_nd)[1][:, -choice.rank :]
            matrix_md = matrix_md @ kept_dr @ kept_dr.T
        return np.asarray(matrix_md)

    def cosine(self, choice: Choice, x_nm: Matrix, y_nd: Matrix) -> float:
        """Compute the mean cosine of mapped vectors to the vectors that they should be."""
        made_nd = self.bias_d + (x_nm - self.mean_m) @ self.fit(choice)
        return float((unit(made_nd) * unit(y_nd)).sum(axis=1).mean())


def fit_adapter(
    x_nm: npt.NDArray[Any], y_nd: npt.NDArray[Any], *, normaliser: Normaliser, encoder: str
) -> tuple[Adapter, dict[Choice, float]]:
    """Fit an adapter from vectors x of the encoder named `encoder` to the vectors y of the same texts by the run's.

    Returns the adapter, and the mean cosines of the best map of each kind on the held-out pairs.

    Raises:
        SamplingError: the pairs are too few, or their texts and vectors do not belong together.
    """
    if len(x_nm) < LEAST:
        raise SamplingError(f"expected at least {LEAST} pairs of texts and vectors, found {len(x_nm)}. Give more.")
    x, y = x_nm.astype(np.float64), y_nd.astype(np.float64)
    held, kept = np.split(np.random.default_rng(0).permutation(len(x)), [round(HELD_OUT * len(x))])
    pairs, best = Pairs(x[kept], y[kept]), dict[Choice, float]()

    def choose(*choices: Choice) -> Choice:
        found = {choice: pairs.cosine(choice, x[held], y[held]) for choice in choices}
        chosen = max(found, key=lambda choice: found[choice])
        best[chosen] = found[chosen]
        return chosen

    ridge = choose(*(Choice("ridge", penalty) for penalty in PENALTIES))
    if ranks := [rank for rank in RANKS if rank < min(len(kept), *pairs.fit(ridge).shape)]:
        choose(*(Choice("low_rank", ridge.penalty, rank) for rank in ranks))
    choose(Choice("orthogonal"))
    chosen = max(best, key=lambda choice: best[choice])
    cosines_hh = unit((x[held] - pairs.mean_m) @ pairs.fit(chosen)) @ unit(y[held] - pairs.bias_d).T
    right, wrong = float(np.diag(cosines_hh).mean()), float(cosines_hh.mean())
    if right - wrong < 0.05 + 3 / np.sqrt(cosines_hh.shape[0] * y.shape[1]):  # the second part is chance
        raise SamplingError(
            f"expected vectors of the texts in the same order, found that the best map brings the {len(held)} held-out "
            f"vectors no nearer to their own texts (cosine {right:.2f} after centring) than to others ({wrong:.2f}). "
            "Check the order."
        )
    pairs = Pairs(x, y)
    back = Pairs(y, x).fit(Choice("ridge", ridge.penalty))
    units = bool(np.abs(np.linalg.norm(x, axis=1) - 1).max() < 1e-2), normaliser.unit_norm
    about = About(str(chosen), encoder, pairs=len(x), cosine=best[chosen], unit_norms=units, typical=(0.0, np.inf))
    adapter = Adapter(
        about=about, mean_m=pairs.mean_m, bias_d=pairs.bias_d, matrix_md=pairs.fit(chosen), back_dm=back,
        signature=Signature.of(x[kept], x[held]) if len(x) >= 2 * x.shape[1] + 100 else None,
    )  # fmt: skip
    typical = typical_of(norms(normaliser.standardise(adapter.to_own(x))))
    return dataclasses.replace(adapter, about=dataclasses.replace(about, typical=typical)), best
