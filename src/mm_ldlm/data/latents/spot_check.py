"""The spot check: a sample of rows is encoded again and compared with the stored vectors."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import numpy.typing as npt

from mm_ldlm.data.corpus.record import is_decoded
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder, no_encoder
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.findings import MAX_EXAMPLES, Findings
from mm_ldlm.data.store import ShardStore

log = logging.getLogger(__name__)


def check_spots(
    found: Findings, records: ShardStore, latents: ShardStore, *, encoder: EncoderConfig, located: LocatedEncoder,
    config: ValidationConfig, seed: int,
) -> None:  # fmt: skip
    """Encode a sample again, with at least one row of every shard if the sample is large enough.

    Without an encoder that can embed texts, the report says that the check was left out.
    """
    if (reason := no_encoder(encoder)) is not None:
        found.add("info", "spot re-encoding", f"No row was encoded again: {reason}")
        log.info("the spot check is left out: %s", reason)
        return
    rows = sample(latents, config.spot_rows, seed=seed)
    stored = latents.fixed("latent").take(rows).astype(np.float64)
    usable = np.isfinite(stored).all(1)
    rows, stored = rows[usable], stored[usable]
    if not len(rows):
        return
    decoded = np.array([is_decoded(meta) for meta in records.take(rows)["meta"].to_pylist()], bool)
    if decoded.any():
        message = f"{decoded.sum()} of {len(rows)} rows were not encoded again: their texts were decoded from tokens."
        found.add("info", "spot re-encoding", message, count=int(decoded.sum()))
        log.info("spot check: %s", message)
        rows, stored = rows[~decoded], stored[~decoded]
    if not len(rows):
        return
    texts = records.strings("text").take(rows)
    again = encoder.load(located).encode(texts).astype(np.float64)
    if again.shape != stored.shape:
        return  # another check reports a different dimension
    distance = np.linalg.norm(again - stored, axis=1) / np.maximum(np.linalg.norm(again, axis=1), 1e-12)
    tolerance = config.spot_tolerance or default_tolerance(latents.fixed("latent").dtype.name, located.dtype)
    bad = np.flatnonzero(distance > tolerance)
    if not len(bad):
        found.add(
            "info",
            "spot re-encoding",
            f"{len(rows)} rows were encoded again: the largest relative distance is {distance.max():.2g} "
            f"(allowed: {tolerance:g}).",
            count=len(rows),
        )
        return
    names = latents.strings("id").take(rows[bad[:MAX_EXAMPLES]])
    swapped = _swapped(again[bad], stored[bad], tolerance)
    hint = f" {swapped} of them are vectors of other rows in the sample: vectors were swapped." if swapped else ""
    found.add(
        "error",
        "spot re-encoding",
        f"{len(bad)} of {len(rows)} re-encoded rows differ from the stored vectors (relative distance up to "
        f"{distance.max():.2g}, allowed: {tolerance:g}).{hint}",
        count=len(bad),
        examples=[f"{name} ({distance[i]:.2g})" for name, i in zip(names, bad, strict=False)],
        remedy=(
            "The store does not contain this encoder's vectors of these texts. Remove it and run the embedding "
            "pipeline again. If the encoder computes in half precision, set validation.spot_tolerance."
        ),
    )
    found.fail_rows("spot re-encoding", rows[bad])


def sample(latents: ShardStore, size: int, *, seed: int) -> npt.NDArray[np.int64]:
    """Draw row numbers that are spread evenly over the shards."""
    random = np.random.default_rng(seed)
    size = min(size, len(latents))
    edges = np.linspace(0, len(latents), size + 1).astype(
        np.int64
    )  # evenly spread over rows means evenly spread over shards
    picked = [int(random.integers(low, max(high, low + 1))) for low, high in itertools.pairwise(edges)]
    return np.unique(np.array(picked, np.int64))


def default_tolerance(stored: str, computed: str) -> float:
    """Return the relative distance that rounding explains."""
    if computed != "float32":
        return 5e-2
    return 3e-3 if stored == "float16" else 1e-4


def _swapped(again: npt.NDArray[np.float64], stored: npt.NDArray[np.float64], tolerance: float) -> int:
    """Count the stored vectors that are the correct vectors of another failing row."""
    if len(again) < 2:
        return 0
    distance = np.linalg.norm(stored[:, None, :] - again[None, :, :], axis=-1) / np.linalg.norm(again, axis=1)
    np.fill_diagonal(distance, np.inf)
    return int((distance.min(1) <= tolerance).sum())
