"""Checks of the latents: dimension, numbers, norms, duplicates, drift, and a sample that is encoded again."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import setting
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder, no_encoder
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.validation.findings import MAX_EXAMPLES, NO_ROWS, Finding, ValidationConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_BLOCK = 8192
_NEIGHBOUR_QUERIES = 2000
_AGAIN = "They are left out of the index. Embed these texts separately to find the cause."


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


@dataclasses.dataclass
class Subject:
    """What is checked.

    Attributes:
        plan: the features that objective and model read.
        stores: records, tokens and the stores of the features, by name.
        located: the encoder of the latents; None without latents, and the encoder is then not compared.
        evaluation_sets: texts by the name of the set, which must not be trained on.
        statistics: of the latents, once they were measured.
    """

    plan: Mapping[str, Feature]
    inputs: Inputs
    stores: Mapping[str, ShardStore]
    encoder: EncoderConfig
    located: LocatedEncoder | None
    config: ValidationConfig
    evaluation_sets: Mapping[str, Sequence[str]]
    seed: int
    statistics: Statistics | None = None


def measure(latents: ShardStore, *, plot_rows: int, seed: int) -> Statistics:
    """Compute the statistics, reading every row once."""
    column = latents.fixed("latent")
    n, d = len(latents), column.dim
    finite_n, norm_n, digest_n = np.zeros(n, bool), np.full(n, np.nan), np.zeros(n, np.int64)
    squares_d, origin_d = np.zeros(d), None
    sums: dict[str, tuple[Floats, int]] = {}
    for number, shard in enumerate(latents.manifest.shards):
        first, last = latents.bounds(number)
        sum_d, count = np.zeros(d), 0
        for start in range(first, last, _BLOCK):
            rows = slice(start, min(start + _BLOCK, last))
            raw = column.shard(number)[rows.start - first : rows.stop - first]
            finite_n[rows] = np.isfinite(raw).all(1)
            digest_n[rows] = [hash(row.tobytes()) for row in raw]
            block = raw[finite_n[rows]].astype(np.float64)
            norm_n[rows][finite_n[rows]] = np.sqrt(np.einsum("nd,nd->n", block, block))
            if len(block):
                origin_d = block.mean(0) if origin_d is None else origin_d  # sums near the mean lose fewer digits
                block = block - origin_d
                squares_d += np.einsum("nd,nd->d", block, block)
                sum_d, count = sum_d + block.sum(0), count + len(block)
        if count:
            sums[shard.name] = sum_d, count
    total = max(sum(count for _, count in sums.values()), 1)
    mean_d = sum((sum_d for sum_d, _ in sums.values()), np.zeros(d)) / total
    variance_d = np.maximum(squares_d / total - mean_d**2, 0)
    scale = float(np.sqrt(variance_d.sum())) or 1.0
    means = {name: sum_d / count for name, (sum_d, count) in sums.items()}
    # Compared with the median of the shards, because one outlying shard would shift the mean towards itself.
    middle_d = np.median([*means.values()] or [mean_d], axis=0)
    drift = [(name, float(np.linalg.norm(each_d - middle_d) / scale)) for name, each_d in means.items()]
    usable = np.flatnonzero(finite_n & (norm_n > 0))
    if len(usable) > plot_rows:
        usable = np.sort(np.random.default_rng(seed).choice(usable, plot_rows, replace=False))
    sample = column.take(usable).astype(np.float64)
    values_d, rank = spectrum(sample) if len(sample) > 1 else (np.zeros(0), 0.0)
    return Statistics(finite_n, norm_n, digest_n, np.sqrt(variance_d), drift, values_d, rank, _neighbours(sample))


def check_vectors(subject: Subject) -> Iterator[Finding]:
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
    subject.statistics = measured = measure(latents, plot_rows=config.plot_rows, seed=subject.seed)
    yield from _numbers(subject, latents, measured)
    yield from _duplicates(subject, latents, measured)
    yield from _dimensions(subject, measured)
    for shard, distance in measured.drift:
        if distance > config.max_drift:
            yield Finding(
                "warning",
                "drift",
                f"the mean of shard {shard} lies {distance:.2f} standard deviations from the others', more than "
                f"{config.max_drift:g}.",
                "Sorted or mixed sources cause this, and so does an encoder that changed during extraction. The spot "
                "check distinguishes the two.",
                count=1,
                examples=[shard],
            )
    stored_by = latents.manifest.fingerprints.get("encoder")
    if config.spot_rows and stored_by == subject.located.fingerprint and len(latents) == len(subject.inputs.records):
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
    one_vector = len(np.unique(measured.digest_n[measured.finite_n])) == 1
    yield Finding(
        "error" if len(dead) > config.max_collapsed_fraction * len(measured.std_d) else "warning",
        "collapsed dimensions",
        f"{len(dead)} of {len(measured.std_d)} dimensions do not vary (standard deviation at most "
        f"{config.collapsed_std:g}); at most {100 * config.max_collapsed_fraction:.2f} % may be collapsed.",
        "There is only one vector, which does not vary: give more texts that differ."
        if one_vector
        else "The encoder is constant in these dimensions: check its pooling and truncation. The normaliser maps them "
        "to 0.",
        count=len(dead),
        examples=dead,
    )


# -- spot check --------------------------------------------------------------------------------------------------------


def check_spots(subject: Subject, latents: ShardStore) -> Iterator[Finding]:
    """Encode a sample again, with at least one row of every shard if the sample is large enough.

    Without an encoder that can embed texts, the report says that the check was left out.
    """
    config, records, located = subject.config, subject.inputs.records, subject.located
    if (reason := no_encoder(subject.encoder)) is not None or located is None:
        yield Finding("info", "spot re-encoding", f"No row was encoded again: {reason}")
        return
    column, rows = latents.fixed("latent"), spread(len(latents), config.spot_rows, seed=subject.seed)
    stored = column.take(rows).astype(np.float64)
    usable = np.isfinite(stored).all(1)
    rows, stored = rows[usable], stored[usable]
    if not len(rows):
        return
    again = subject.encoder.load(located).encode(records.gather("text", rows).to_pylist()).astype(np.float64)
    distance = np.linalg.norm(again - stored, axis=1) / np.maximum(np.linalg.norm(again, axis=1), 1e-12)
    exact = 3e-3 if column.dtype == np.float16 else 1e-4
    tolerance = config.spot_tolerance or (exact if located.dtype == "float32" else 5e-2)
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
    names = latents.gather("id", rows[bad]).to_pylist()
    yield Finding(
        "error",
        "spot re-encoding",
        f"{len(bad)} of {len(rows)} re-encoded rows differ from the stored vectors (relative distance up to "
        f"{distance.max():.2g}, allowed: {tolerance:g}).",
        "The store does not contain this encoder's vectors of these texts. Remove it and run the embedding pipeline "
        "again. If the encoder computes in half precision, set validation.spot_tolerance.",
        count=len(bad),
        examples=[f"{name} ({distance[i]:.2g})" for name, i in zip(names, bad, strict=True)],
        failing=rows[bad],
    )


def spread(rows: int, size: int, *, seed: int) -> Ints:
    """Draw row numbers that are spread evenly over all rows, and therefore over the shards."""
    random = np.random.default_rng(seed)
    edges = np.linspace(0, rows, min(size, rows) + 1).astype(np.int64)
    return np.unique([int(random.integers(low, max(high, low + 1))) for low, high in itertools.pairwise(edges)])


# -- numbers -----------------------------------------------------------------------------------------------------------


def spectrum(vectors_nd: npt.NDArray[Any]) -> tuple[Floats, float]:
    """Compute the eigenvalues (d,) of the covariance of at least two vectors, largest first, and the effective rank.

    The effective rank is exp of the entropy of the spectrum (Roy & Vetterli 2007).
    """
    covariance_dd = np.atleast_2d(np.cov(np.asarray(vectors_nd, np.float64), rowvar=False))
    values_d = np.linalg.eigvalsh(covariance_dd)[::-1].clip(min=0)
    fraction = values_d[values_d > 0] / values_d.sum()
    return values_d, float(np.exp(-(fraction * np.log(fraction)).sum()))


def _neighbours(sample: Floats) -> Floats:
    if len(sample) < 2:
        return np.zeros(0)
    unit = (sample / np.linalg.norm(sample, axis=1, keepdims=True)).astype(np.float32)
    step = max(1, len(unit) // _NEIGHBOUR_QUERIES)
    found = []
    for start in range(0, len(unit), 256 * step):
        queries = np.arange(start, min(start + 256 * step, len(unit)), step)
        cosine = unit[queries] @ unit.T
        cosine[np.arange(len(queries)), queries] = -1
        found.append(cosine.max(1))
    return np.concatenate(found).astype(np.float64)


def _quantiles(values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    points = np.quantile(values, [0, 0.01, 0.5, 0.99, 1])
    return dict(zip(("min", "p01", "median", "p99", "max"), (float(point) for point in points), strict=True))
