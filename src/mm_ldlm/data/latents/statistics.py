"""Statistics of the latents for the vector checks and plots, computed in one streaming pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.store import ShardStore

_BLOCK = 8192
_NEIGHBOUR_QUERIES = 2000


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of n rows with d dimensions.

    Attributes:
        finite_n: every number of the row is finite.
        norm_n: (n,) float64; NaN where the row is not finite.
        digest_n: (n,) uint64 digest of the row's bytes; equal rows have equal digests.
        bad_per_dimension_d: number of rows that are not finite in that dimension.
        mean_d, std_d: over finite rows, float64.
        drift: (shard name, distance of its mean from the shards' median, in total standard deviations).
        spectrum: eigenvalues of the covariance of a sample, largest first, as fractions of their sum.
        neighbour_cosine: of sampled rows, to the nearest other row of the sample.
    """

    finite_n: npt.NDArray[np.bool_]
    norm_n: npt.NDArray[np.float64]
    digest_n: npt.NDArray[np.uint64]
    bad_per_dimension_d: npt.NDArray[np.int64]
    mean_d: npt.NDArray[np.float64]
    std_d: npt.NDArray[np.float64]
    drift: list[tuple[str, float]]
    spectrum: npt.NDArray[np.float64]
    neighbour_cosine: npt.NDArray[np.float64]

    def summary(self) -> dict[str, Any]:
        """Return the main numbers for the report."""
        good = self.norm_n[self.finite_n]
        fractions = self.spectrum[self.spectrum > 0]
        return {
            "dim": len(self.mean_d),
            "finite_rows": int(self.finite_n.sum()),
            "norm": _quantiles(good),
            "standard deviation": _quantiles(self.std_d),
            "largest_drift": max((distance for _, distance in self.drift), default=0.0),
            "effective_dimensions": float(np.exp(-(fractions * np.log(fractions)).sum())) if len(fractions) else 0.0,
            "neighbour_cosine": _quantiles(self.neighbour_cosine),
        }


def measure(latents: ShardStore, *, plot_rows: int, seed: int) -> Statistics:
    """Compute the statistics, reading every row once."""
    column = latents.fixed("latent")
    n, d = len(latents), column.dim
    finite_n, norm_n, digest_n = np.zeros(n, bool), np.full(n, np.nan), np.zeros(n, np.uint64)
    bad_d = np.zeros(d, np.int64)
    total_d, squares_d, count = np.zeros(d), np.zeros(d), 0
    origin_d: npt.NDArray[np.float64] | None = None
    shard_sums: list[tuple[str, npt.NDArray[np.float64], int]] = []
    multipliers = np.random.default_rng(0).integers(1, 2**63, size=-(-d * column.dtype.itemsize // 8), dtype=np.uint64)
    multipliers |= np.uint64(1)
    for number, shard in enumerate(latents.manifest.shards):
        first, last = latents.bounds(number)
        shard_sum_d, shard_count = np.zeros(d), 0
        for start in range(first, last, _BLOCK):
            stop = min(start + _BLOCK, last)
            raw = column.shard(number)[start - first : stop - first]
            block = raw.astype(np.float64)
            good = np.isfinite(block)
            whole = good.all(1)
            finite_n[start:stop] = whole
            bad_d += (~good).sum(0)
            digest_n[start:stop] = _digests(raw, multipliers)
            block = block[whole]
            norm_n[start:stop][whole] = np.sqrt(np.einsum("nd,nd->n", block, block))
            if not len(block):
                continue
            if origin_d is None:
                origin_d = block.mean(0)  # sums around a point near the mean lose fewer digits
            block = block - origin_d
            total_d += block.sum(0)
            squares_d += np.einsum("nd,nd->d", block, block)
            shard_sum_d += block.sum(0)
            shard_count += len(block)
        count += shard_count
        shard_sums.append((shard.name, shard_sum_d, shard_count))
        latents.release()
    shift_d = total_d / max(count, 1)
    variance_d = np.maximum(squares_d / max(count, 1) - shift_d**2, 0)
    total = float(np.sqrt(variance_d.sum())) or 1.0
    means = {name: sums / size for name, sums, size in shard_sums if size}
    # Compared with the median of the shards, because one outlying shard would shift the mean towards itself.
    middle_d = np.median(np.stack(list(means.values())), axis=0) if means else shift_d
    drift = [(name, float(np.linalg.norm(mean_d - middle_d) / total)) for name, mean_d in means.items()]
    sample = _sample(latents, finite_n & (norm_n > 0), plot_rows, seed)
    return Statistics(
        finite_n, norm_n, digest_n, bad_d, shift_d + (origin_d if origin_d is not None else 0), np.sqrt(variance_d),
        drift, _spectrum(sample), _neighbours(sample),
    )  # fmt: skip


def _digests(raw: npt.NDArray[Any], multipliers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Compute multiply-sum hashes of the rows' bytes modulo 2^64; different rows collide with probability 2^-63."""
    words = np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), -1)
    if pad := -words.shape[1] % 8:
        words = np.pad(words, ((0, 0), (0, pad)))
    mixed = words.view(np.uint64)
    mixed = mixed ^ (mixed >> np.uint64(29))  # products alone do not propagate high bits to low bits
    digest: npt.NDArray[np.uint64] = (mixed * multipliers).sum(1, dtype=np.uint64)
    return digest


def _sample(latents: ShardStore, usable: npt.NDArray[np.bool_], size: int, seed: int) -> npt.NDArray[np.float64]:
    rows = np.flatnonzero(usable)
    if len(rows) > size:
        rows = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
    return latents.fixed("latent").take(rows).astype(np.float64)


def _spectrum(sample: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if len(sample) < 2:
        return np.zeros(0)
    values = np.linalg.eigvalsh(np.cov(sample, rowvar=False).reshape(sample.shape[1], -1))[::-1].clip(min=0)
    return values / values.sum() if values.sum() > 0 else values


def _neighbours(sample: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
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


def _quantiles(values: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    points = np.quantile(values, [0, 0.01, 0.5, 0.99, 1])
    return dict(zip(("min", "p01", "median", "p99", "max"), (float(point) for point in points), strict=True))
