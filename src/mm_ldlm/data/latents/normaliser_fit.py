"""Fitting of a normaliser on the training split, in one streaming pass with float64 accumulators.

Shapes: n rows, d dimensions.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import StoreError
from mm_ldlm.data.features import Feature
from mm_ldlm.data.index import split_column
from mm_ldlm.data.latents.normaliser import Matrix, Normaliser, NormaliserConfig, Normalisers, norms
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.store.shards import FixedColumn

log = logging.getLogger(__name__)

ENOUGH = 10
"""Rows for each dimension from which on "whitening" uses their covariance as it is"""
TYPICAL_QUANTILES = (0.001, 0.999)
TYPICAL_MARGIN = 1.15
"""Quantiles of the norms of the validation split, and the factor by which the range is wider on both sides"""
_NORMAL_IQR = 1.3489795003921634  # of a unit normal
_READ_ROWS = 16_384


def fit_all(
    plan: Mapping[str, Feature], stores: Mapping[str, ShardStore], *, tokens: ShardStore, index: ShardStore
) -> Normalisers:
    """Fit the normalisers of the features that have one, on the valid training examples.

    The ranges of those with one row for each record are those of the validation split.
    """
    found = Normalisers()
    train, validation = (split_column(index, split, "row") for split in ("train", "validation"))
    for name, feature in plan.items():
        if feature.normaliser_folder is None:
            continue
        field = feature.field(stores[name], tokens)
        fitted = fit(
            field.column, rows=field.rows(train), config=feature.standardisation,
            unit_norm=feature.unit_norm(stores[name]),
        )  # fmt: skip
        if feature.row_of == "record":
            fitted = calibrated(fitted, field.column, rows=validation)
        found[feature.normaliser_folder] = fitted
    return found


def fit(column: FixedColumn, *, rows: npt.NDArray[np.int64], config: NormaliserConfig, unit_norm: bool) -> Normaliser:
    """Fit a normaliser on these rows of a column of vectors (those of the training split).

    The numbers do not depend on the number of threads, which changes the order of the sums in a product of matrices.

    Raises:
        StoreError: A number is not finite.
    """
    from threadpoolctl import threadpool_limits

    count = len(rows)
    with threadpool_limits(limits=1):
        if config.kind == "robust":
            return _fit_robust(column, rows, config, unit_norm)
        mean_d, moments = _moments(_pieces(column, rows), full=config.kind == "whitening")
        if config.kind == "whitening":
            return _whitening(mean_d, moments / max(count - 1, 1), rows=count, unit_norm=unit_norm)
        std = np.sqrt(moments / max(count - 1, 1))
        if config.kind == "one_scale":
            return _one_scale(mean_d, std, rows=count, unit_norm=unit_norm)
        return _per_dimension("standard", mean_d, std, rows=count, unit_norm=unit_norm)


def calibrated(normaliser: Normaliser, column: FixedColumn, *, rows: npt.NDArray[np.int64]) -> Normaliser:
    """Copy a normaliser with the range of norms of these rows (those of the validation split), if there are any."""
    if not len(rows):
        return normaliser
    found = np.concatenate([norms(normaliser.standardise(piece)) for piece in _pieces(column, rows)])
    low, high = np.quantile(found, TYPICAL_QUANTILES)
    return dataclasses.replace(normaliser, typical=(float(low / TYPICAL_MARGIN), float(high * TYPICAL_MARGIN)))


def _pieces(column: FixedColumn, rows: npt.NDArray[np.int64]) -> Iterator[Matrix]:
    rows = np.sort(rows)
    for start in range(0, len(rows), _READ_ROWS):
        piece = column.take(rows[start : start + _READ_ROWS]).astype(np.float64)
        if not np.isfinite(piece).all():
            bad = rows[start + int(np.flatnonzero(~np.isfinite(piece).all(1))[0])]
            raise StoreError(
                f"{column.store.directory}: row {bad} contains a number that is not finite. Validate before fitting."
            )
        yield piece


def _moments(pieces: Iterator[Matrix], *, full: bool) -> tuple[Matrix, Matrix]:
    """Compute mean and sum of squared deviations (or of their outer products) in one pass (Chan et al. 1983)."""
    count = 0
    mean_d: Matrix = np.zeros(1)
    moments: Matrix = np.zeros(1)
    for piece in pieces:
        own_mean = piece.mean(0)
        centred = piece - own_mean
        own = centred.T @ centred if full else np.einsum("nd,nd->d", centred, centred)
        delta = own_mean - mean_d
        total = count + len(piece)
        between = np.outer(delta, delta) if full else delta * delta
        moments = moments + own + between * (count * len(piece) / total)
        mean_d = mean_d + delta * (len(piece) / total)
        count = total
    return mean_d, moments


def _fit_robust(
    column: FixedColumn, rows: npt.NDArray[np.int64], config: NormaliserConfig, unit_norm: bool
) -> Normaliser:
    chosen = (
        rows if len(rows) <= config.robust_rows else rows[np.linspace(0, len(rows) - 1, config.robust_rows).astype(int)]
    )
    values = np.concatenate(list(_pieces(column, chosen)))
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    return _per_dimension("robust", median, (high - low) / _NORMAL_IQR, rows=len(rows), unit_norm=unit_norm)


def _per_dimension(kind: str, centre_d: Matrix, scale_d: Matrix, *, rows: int, unit_norm: bool) -> Normaliser:
    # Below this threshold a dimension contains only float32 rounding errors, which scaling would turn into noise.
    constant = scale_d <= 1e-6 * max(float(scale_d.max()), 1e-300)
    safe = np.where(constant, 1.0, scale_d)
    return Normaliser(kind, centre_d, safe, unit_norm, rows, constant=tuple(np.flatnonzero(constant).tolist()))


def _one_scale(mean_d: Matrix, std_d: Matrix, *, rows: int, unit_norm: bool) -> Normaliser:
    """Scale so that the variance of a dimension is 1 on average; vectors without any variation keep their scale."""
    scale = float(np.sqrt(np.square(std_d).mean())) or 1.0
    return Normaliser("one_scale", mean_d, np.full_like(mean_d, scale), unit_norm, rows)


def one_scale_part(rows: int, dim: int) -> float:
    """Part of one scale for all dimensions in a whitening: 1 up to a row for each dimension, 0 from `ENOUGH` on.

    With about as many rows as dimensions, their covariance has axes of almost no variance that only this sample has.
    Whitening by it gives other texts standard deviations of 10 to 100 there.
    """
    return float(np.clip((ENOUGH * dim / max(rows, 1) - 1) / (ENOUGH - 1), 0, 1))


def _whitening(mean_d: Matrix, covariance_dd: Matrix, *, rows: int, unit_norm: bool) -> Normaliser:
    """Compute W = V diag(1/√λ'): principal axes with unit variance. Axes without variance keep their scale.

    With few rows, λ' is a mixture of the variances λ and of their mean, scaled so that the variance after it is still 1
    on average.
    """
    values, axes = np.linalg.eigh(covariance_dd)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    if (part := one_scale_part(rows, len(values))) > 0 and values.max() > 0:
        log.info(
            "%s training vectors are few to whiten %s dimensions: the normaliser is a mixture of %.0f %% one scale for "
            "all dimensions and %.0f %% whitening; from %s vectors on it is whitening alone",
            f"{rows:,}", f"{len(values):,}", 100 * part, 100 * (1 - part), f"{ENOUGH * len(values):,}",
        )  # fmt: skip
        mixed = (1 - part) * values + part * values.mean()
        values = mixed * (values / mixed).mean()
    flat = values <= 1e-10 * max(float(values.max()), 1e-300)
    std = np.sqrt(np.where(flat, 1.0, values))
    return Normaliser(
        "whitening", mean_d, np.ones_like(mean_d), unit_norm, rows,
        matrix_dd=axes / std, inverse_dd=(axes * std).T.copy(),
    )  # fmt: skip
