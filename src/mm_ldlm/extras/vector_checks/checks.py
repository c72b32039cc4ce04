"""Dimension, numbers, norms, duplicates and drift of the latents, and a sample that is encoded again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import Fraction, NonNegativeFloat, PositiveFloat, Rows, RowsOrNone, config, setting
from mm_ldlm.data.encoders import no_encoder
from mm_ldlm.data.latents.normaliser import moments, spectrum
from mm_ldlm.data.latents.recognition import unit
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.validation.checks import DataCheck, Subject
from mm_ldlm.data.validation.findings import MAX_EXAMPLES, NO_ROWS, Finding, ValidationConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BLOCK = 8192
_NEIGHBOUR_QUERIES = 2000
_AGAIN = "They are left out of the index. Embed these texts separately to find the cause."


@config
class VectorLimits(ValidationConfig):
    """Limits of the checks of vectors.

    Attributes:
        norm_tolerance: allowed difference from norm 1 if the encoder normalises; other rows go to quarantine.
        norm_outlier_iqrs: for other encoders, norms this many interquartile ranges outside the middle half are
            outliers.
        on_norm_outlier: "warn" or "quarantine".
        on_duplicate_vector: reaction to different texts with the same vector: "warn", or "quarantine" for all but the
            first.
        max_duplicate_fraction: the contract fails when a larger fraction of rows shares its vector with another row.
        collapsed_std: a dimension with at most this standard deviation counts as collapsed.
        max_collapsed_fraction: the contract fails when a larger fraction of the dimensions is collapsed.
        max_drift: a larger distance of a shard's mean from the shards' median, in total standard deviations, is a
            warning.
        spot_rows: number of rows, drawn over all shards, that are encoded again and compared; 0 skips the check.
        spot_tolerance: largest relative distance of a vector to its re-encoding; null chooses 1e-4 for float32, 3e-3
            for float16 storage, and 5e-2 for encoders that compute in half precision.
        plot_rows: number of sampled rows for the spectrum and nearest-neighbour plots.
    """

    norm_tolerance: PositiveFloat = 1e-3
    norm_outlier_iqrs: PositiveFloat = 8.0
    on_norm_outlier: Literal["warn", "quarantine"] = "warn"
    on_duplicate_vector: Literal["warn", "quarantine"] = "warn"
    max_duplicate_fraction: Fraction = 0.05
    collapsed_std: NonNegativeFloat = 1e-6
    max_collapsed_fraction: Fraction = 0.05
    max_drift: PositiveFloat = 0.5
    spot_rows: RowsOrNone = 256
    spot_tolerance: PositiveFloat | None = None
    plot_rows: Rows = 20_000


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of n rows with d dimensions, read once.

    Attributes:
        finite_n: every number of the row is finite.
        norm_n: (n,) float64; NaN where the row is not finite.
        digest_n: (n,) digest of the row's bytes; equal rows have equal digests.
        std_d: over finite rows, float64.
        drift: (shard name, distance of its mean from the shards' median, in total standard deviations).
        spectrum_d: eigenvalues of the covariance of a sample, largest first; none of fewer than two rows.
        effective_dimensions: effective rank of that covariance (`spectrum`).
        neighbour_cosine: of sampled rows, to the nearest other row of the sample.
    """

    finite_n: npt.NDArray[np.bool_]
    norm_n: Floats
    digest_n: Ints
    std_d: Floats
    drift: list[tuple[str, float]]
    spectrum_d: Floats
    effective_dimensions: float
    neighbour_cosine: Floats

    def summary(self) -> dict[str, Any]:
        """Return the main numbers for the report."""
        return {
            "dim": len(self.std_d),
            "finite_rows": int(self.finite_n.sum()),
            "norm": _quantiles(self.norm_n[self.finite_n]),
            "standard deviation": _quantiles(self.std_d),
            "largest_drift": max((distance for _, distance in self.drift), default=0.0),
            "effective_dimensions": self.effective_dimensions,
            "neighbour_cosine": _quantiles(self.neighbour_cosine),
        }


def measure(latents: ShardStore, *, plot_rows: int, seed: int) -> Statistics:
    """Compute the statistics, reading every row once."""
    column, n = latents.fixed("latent"), len(latents)
    finite_n, norm_n, digest_n = np.zeros(n, bool), np.full(n, np.nan), np.zeros(n, np.int64)

    def finite(shard: int) -> Iterator[Floats]:
        first, last = latents.bounds(shard)
        for start in range(first, last, _BLOCK):
            rows = slice(start, min(start + _BLOCK, last))
            raw = column.shard(shard)[rows.start - first : rows.stop - first]
            finite_n[rows] = np.isfinite(raw).all(1)
            digest_n[rows] = [hash(row.tobytes()) for row in raw]
            block = raw[finite_n[rows]].astype(np.float64)
            norm_n[rows][finite_n[rows]] = np.sqrt(np.einsum("nd,nd->n", block, block))
            if len(block):
                yield block

    names = [shard.name for shard in latents.manifest.shards]
    found = [moments(finite(shard), full=False) for shard in range(len(names))]
    mean_sd, squares_sd = (np.array([np.zeros(column.dim) + each[part] for each in found]) for part in (0, 1))
    count_s1 = np.array([[finite_n[slice(*latents.bounds(shard))].sum()] for shard in range(len(names))])
    total, used_s = max(count_s1.sum(), 1), count_s1[:, 0] > 0
    mean_d = (count_s1 * mean_sd).sum(0) / total
    variance_d = (squares_sd + count_s1 * (mean_sd - mean_d) ** 2).sum(0) / total
    # Compared with the median of the shards, because one outlying shard would shift the mean towards itself.
    distance_sd = mean_sd - np.median(mean_sd[used_s] if used_s.any() else mean_sd, axis=0)
    distance_s = np.linalg.norm(distance_sd, axis=1) / (np.sqrt(variance_d.sum()) or 1.0)
    drift = [(name, float(each)) for name, each, used in zip(names, distance_s, used_s, strict=True) if used]
    usable = np.flatnonzero(finite_n & (norm_n > 0))
    if len(usable) > plot_rows:
        usable = np.sort(np.random.default_rng(seed).choice(usable, plot_rows, replace=False))
    sample, few = column.take(usable).astype(np.float64), (np.zeros(0), 0.0, np.zeros(0))
    shown = (*spectrum(sample), _neighbours(sample)) if len(sample) > 1 else few
    return Statistics(finite_n, norm_n, digest_n, np.sqrt(variance_d), drift, *shown)


class Vectors(DataCheck):
    """The statistics of the latents, what they show, and a sample that is encoded again."""

    plots: ClassVar = {
        "plot_norms": "Norms of the encoder's vectors.",
        "plot_spectrum": "Spectrum of the covariance of the stored latents.",
        "plot_neighbours": "Cosine to the nearest neighbour.",
    }

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Check the latents, if there are any: their dimension, then their numbers, then a sample by the encoder."""
        if (latents := subject.stores.get("latents")) is None or subject.located is None:
            return
        dim, config = latents.fixed("latent").dim, subject.config
        if subject.located.dim not in (None, dim):
            yield Finding(
                "error",
                "dimension",
                f"the encoder has dimension {subject.located.dim}, but the stored vectors have {dim} dimensions.",
                "Choose the encoder (and encoder.truncate_dim) of the stored vectors, or embed again.",
                count=len(latents),
            )
            return
        measured = measure(latents, plot_rows=config.plot_rows, seed=subject.sections["seed"])
        self.statistics, self.figures = measured.summary(), figures_of(measured)
        yield from _numbers(subject, latents, measured)
        yield from _duplicates(subject, latents, measured)
        yield from _dimensions(subject, measured)
        yield from _drift(subject, measured)
        same = latents.manifest.fingerprints.get("encoder") == subject.located.fingerprint
        if config.spot_rows and same and len(latents) == len(subject.inputs.records):
            yield from check_spots(subject, latents)


def _numbers(subject: Subject, latents: ShardStore, measured: Statistics) -> Iterator[Finding]:
    """Find non-finite and zero vectors, and unusual norms."""
    config, norms = subject.config, measured.norm_n
    zero = measured.finite_n & (norms == 0)
    good = measured.finite_n & ~zero
    found = [
        ("finite", ~measured.finite_n, "contain NaN or infinity", _AGAIN, True),
        ("zero", zero, "are zero vectors", _AGAIN, True),
    ]
    if subject.located is not None and subject.located.normalised:
        words = f"have a norm that differs from 1 by more than {config.norm_tolerance:g}, but the encoder normalises"
        remedy = "Set encoder.normalised=false in a new data folder if it does not normalise."
        found.append(("norm", good & (np.abs(norms - 1) > config.norm_tolerance), words, f"{_AGAIN} {remedy}", True))
    elif good.any():
        low, high = np.quantile(norms[good], [0.25, 0.75])
        reach = config.norm_outlier_iqrs * (high - low)
        words = f"have a norm outside {low - reach:.4g} … {high + reach:.4g} (middle half {low:.4g} … {high:.4g})"
        remedy = "Read these texts; validation.on_norm_outlier decides what happens to them."
        off = good & ((norms < low - reach) | (norms > high + reach))
        found.append(("norm", off, words, remedy, config.on_norm_outlier == "quarantine"))
    for check, bad_n, words, remedy, quarantine in found:
        rows = np.flatnonzero(bad_n)
        if len(rows):
            yield Finding(
                "warning",
                check,
                f"{len(rows)} rows {words}.",
                remedy,
                count=len(rows),
                examples=latents.gather("id", rows[:MAX_EXAMPLES]).to_pylist(),
                failing=rows if quarantine else NO_ROWS,
            )


def _duplicates(subject: Subject, latents: ShardStore, measured: Statistics) -> Iterator[Finding]:
    """Find different texts with the same vector."""
    candidates = np.flatnonzero(measured.finite_n & (measured.norm_n > 0))
    _, first, counts = np.unique(measured.digest_n[candidates], return_index=True, return_counts=True)
    later = np.delete(candidates, first)
    if not len(later):
        return
    involved, most = int(counts[counts > 1].sum()), subject.config.max_duplicate_fraction
    fraction, quarantine = involved / len(candidates), subject.config.on_duplicate_vector == "quarantine"
    accepting = setting("validation.max_duplicate_fraction", math.ceil(100 * fraction) / 100)
    yield Finding(
        "error" if fraction > most and not quarantine else "warning",
        "duplicate vectors",
        f"{involved} rows ({100 * fraction:.2f} %) share their vector with a different text; at most "
        f"{100 * most:.2f} % may do so.",
        "Texts that differ only in case or spacing may cause this; many duplicates indicate a broken encoder, or "
        f"vectors that were joined with other texts. {accepting} accepts them; "
        f"{setting('validation.on_duplicate_vector', 'quarantine')} keeps the first row of each.",
        count=involved,
        examples=latents.gather("id", later[:MAX_EXAMPLES]).to_pylist(),
        failing=later if quarantine else NO_ROWS,
    )


def _dimensions(subject: Subject, measured: Statistics) -> Iterator[Finding]:
    """Find dimensions that do not vary."""
    config, dead = subject.config, np.flatnonzero(measured.std_d <= subject.config.collapsed_std)
    if not len(dead):
        return
    yield Finding(
        "error" if len(dead) > config.max_collapsed_fraction * len(measured.std_d) else "warning",
        "collapsed dimensions",
        f"{len(dead)} of {len(measured.std_d)} dimensions do not vary (standard deviation at most "
        f"{config.collapsed_std:g}); at most {100 * config.max_collapsed_fraction:.2f} % may be collapsed.",
        "There is only one vector, which does not vary: give more texts that differ."
        if len(np.unique(measured.digest_n[measured.finite_n])) == 1
        else "The encoder is constant in these dimensions: check its pooling and truncation. The normaliser maps them "
        "to 0.",
        count=len(dead),
        examples=dead,
    )


def _drift(subject: Subject, measured: Statistics) -> Iterator[Finding]:
    """Find shards with another mean."""
    for shard, distance in measured.drift:
        if distance > subject.config.max_drift:
            yield Finding(
                "warning",
                "drift",
                f"the mean of shard {shard} lies {distance:.2f} standard deviations from the shards' median, more than "
                f"{subject.config.max_drift:g}.",
                "Sorted or mixed sources cause this, and so does an encoder that changed during extraction. The spot "
                "check distinguishes the two.",
                count=1,
                examples=[shard],
            )


# -- spot check --------------------------------------------------------------------------------------------------------


def check_spots(subject: Subject, latents: ShardStore) -> Iterator[Finding]:
    """Encode a sample again, with at least one row of every shard if the sample is large enough.

    Without an encoder that can embed texts, the report says that the check was left out.
    """
    config, records, located = subject.config, subject.inputs.records, subject.located
    encoder = subject.sections["encoder"]
    if (reason := no_encoder(encoder)) is not None or located is None:
        yield Finding("info", "spot re-encoding", f"No row was encoded again: {reason}")
        return
    column, rows = latents.fixed("latent"), spread(len(latents), config.spot_rows, seed=subject.sections["seed"])
    stored = column.take(rows).astype(np.float64)
    usable = np.isfinite(stored).all(1)
    rows, stored = rows[usable], stored[usable]
    if not len(rows):
        return
    again = encoder.load(located).encode(records.gather("text", rows).to_pylist()).astype(np.float64)
    distance = np.linalg.norm(again - stored, axis=1) / np.maximum(np.linalg.norm(again, axis=1), 1e-12)
    rounding = 5e-2 if located.dtype != "float32" else 3e-3 if column.dtype == np.float16 else 1e-4
    tolerance = config.spot_tolerance or rounding
    bad = np.flatnonzero(distance > tolerance)
    if not len(bad):
        yield Finding(
            "info",
            "spot re-encoding",
            f"{len(rows)} rows were encoded again: the largest relative distance is {distance.max():.2g} (allowed: "
            f"{tolerance:g}).",
            count=len(rows),
        )
        return
    yield Finding(
        "error",
        "spot re-encoding",
        f"{len(bad)} of {len(rows)} re-encoded rows differ from the stored vectors (relative distance up to "
        f"{distance.max():.2g}, allowed: {tolerance:g}).",
        "The store does not contain this encoder's vectors of these texts. Remove it and run the embedding pipeline "
        "again. If the encoder computes in half precision, set validation.spot_tolerance.",
        count=len(bad),
        examples=[f"{latents.gather('id', rows[[i]])[0]} ({distance[i]:.2g})" for i in bad[:MAX_EXAMPLES]],
        failing=rows[bad],
    )


def spread(rows: int, size: int, *, seed: int) -> Ints:
    """Draw row numbers that are spread evenly over all rows, and therefore over the shards."""
    edges = np.linspace(0, rows, min(size, rows) + 1).astype(np.int64)
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


# -- numbers -----------------------------------------------------------------------------------------------------------


def _neighbours(sample: Floats) -> Floats:
    """Compute the cosine of some vectors to the nearest other one: the largest but that to themselves."""
    unit_nd = unit(sample).astype(np.float32)
    step = max(1, len(unit_nd) // _NEIGHBOUR_QUERIES)
    blocks = np.split(unit_nd[::step], range(256, len(unit_nd[::step]), 256))
    return np.concatenate([np.partition(block @ unit_nd.T, -2)[:, -2] for block in blocks]).astype(np.float64)


def _quantiles(values: Floats) -> dict[str, float]:
    points = np.quantile(values, [0, 0.01, 0.5, 0.99, 1]).tolist() if len(values) else []
    return dict(zip(("min", "p01", "median", "p99", "max"), points, strict=False))


# -- figures -----------------------------------------------------------------------------------------------------------


def figures_of(found: Statistics) -> dict[str, Any]:
    """Plot the norms, the spectrum and the neighbours of vectors, by name."""
    norms_n, directions_d = found.norm_n[found.finite_n], np.arange(1, len(found.spectrum_d) + 1)
    return {
        "plot_norms": _small("bar", *_binned(norms_n), x="norm of the encoder's vector", y="texts"),
        "plot_spectrum": _small(
            "scatter", directions_d, found.spectrum_d, x="principal direction", y="variance", log=True
        ),
        "plot_neighbours": _small(
            "bar", *_binned(found.neighbour_cosine), x="cosine to the nearest neighbour", y="texts"
        ),
    }


def _small(kind: str, x_n: np.ndarray, y_n: np.ndarray, *, x: str, y: str, log: bool = False) -> Any:
    from mm_ldlm.evaluation.report import theme

    scale = {"type": "log", "tickformat": "~g"} if log else {}
    return theme.chart([{"type": kind, "x": x_n, "y": y_n}], x={"title": x}, y={"title": y, **scale}, height=280)


def _binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres and the counts of a histogram, so that a figure is small for any number of rows."""
    if not len(values):
        return values, values
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-6:  # unit vectors: one bar around their norm
        low, high = low - 1e-3, high + 1e-3
    counts, edges = np.histogram(values, bins=60, range=(low, high))
    return (edges[:-1] + edges[1:]) / 2, counts
