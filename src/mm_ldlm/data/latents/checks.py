"""Validation: check records, tokens and latents against each other, the encoder and the model before training.

`validate` runs the checks in an order in which a failure makes later ones pointless, and returns a report. Findings do
not raise errors here: `findings.enforce` raises them after the report is on disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core.errors import MissingShardError, ShardSchemaError, StoreError, TruncatedShardError
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders import EncoderConfig, LocatedEncoder
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.latents import alignment, statistics
from mm_ldlm.data.latents.config import ValidationConfig
from mm_ldlm.data.latents.findings import Findings
from mm_ldlm.data.latents.spot_check import check_spots
from mm_ldlm.data.store import ShardStore


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of validation.

    Attributes:
        report: plain JSON: passed, rows, valid, quarantined, splits, findings, statistics.
        failing: row numbers by reason; these rows go to quarantine and are left out of the index.
        statistics: data of the plots.
    """

    report: dict[str, Any]
    failing: dict[str, npt.NDArray[np.int64]]
    statistics: statistics.Statistics | None


def validate(
    plan: Mapping[str, Feature],
    inputs: Inputs,
    *,
    encoder: EncoderConfig,
    config: ValidationConfig,
    evaluation_sets: Mapping[str, Sequence[str]],
    seed: int,
) -> Outcome:
    """Check the stores against one another, the tokenizer and the encoder; `inputs` has the stores of all features.

    Without latents, the encoder is neither located nor compared.
    """
    found, records, tokens = Findings(), inputs.records, inputs.tokens
    latents, located = inputs.features.get("latents"), None
    if latents is not None:
        located = encoder.locate(expected=latents.manifest.fingerprints.get("encoder"))
    stores = {"records": records, "tokens": tokens, **inputs.features}
    _check_fingerprints(found, stores, tokenizer=inputs.tokenizer, located=located)
    readable = _check_bytes(found, *stores.values(), checksums=config.verify_checksums)
    has_vectors = latents is not None and located is not None and _check_shapes(found, latents, located=located)
    measured = None
    if readable:
        aligned = [inputs.features[name] for name, feature in plan.items() if feature.row_of == "record"]
        alignment.check_ids(found, records, tokens, *aligned)
        alignment.check_tokens(found, tokens, tokenizer=inputs.tokenizer)
        alignment.check_texts(found, records, evaluation_sets=evaluation_sets, on_leakage=config.on_leakage)
    if readable and has_vectors and latents is not None and located is not None:
        measured = statistics.measure(latents, plot_rows=config.plot_rows, seed=seed)
        check_vectors(found, latents, measured, config=config, normalised=located.normalised)
        if config.spot_rows and not any(finding.check in ("encoder", "alignment") for finding in found.errors):
            check_spots(found, records, latents, encoder=encoder, located=located, config=config, seed=seed)
    failing = found.failing
    fraction = len(failing) / max(len(records), 1)
    if fraction > config.max_quarantine_fraction:
        found.add(
            "error",
            "quarantine",
            f"{len(failing)} of {len(records)} rows ({100 * fraction:.2f} %) failed; at most "
            f"{100 * config.max_quarantine_fraction:.2f} % may fail.",
            count=len(failing),
            remedy=(
                "Read the reasons in quarantine_validation. If they are justified, raise "
                "validation.max_quarantine_fraction."
            ),
        )
    for name, feature in plan.items():  # records that a feature refuses do not count against the fraction
        feature.check(found, inputs.features[name], records)
    quarantined = len(found.failing)
    report = {
        "passed": not found.errors,
        "rows": len(records),
        "valid": len(records) - quarantined,
        "quarantined": quarantined,
        "quarantine": {check: len(rows) for check, rows in sorted(found.rows.items())},
        "findings": found.plain(),
        "encoder": located.describe() if located is not None else None,
        "statistics": measured.summary() if measured is not None else {},
        "fingerprints": {name: store.manifest.fingerprint for name, store in stores.items()},
        **found.facts,
    }
    return Outcome(report, found.rows, measured)


def _check_fingerprints(
    found: Findings, stores: Mapping[str, ShardStore], *, tokenizer: TextTokenizer, located: LocatedEncoder | None
) -> None:
    """Check that each store was made from the present other stores, encoder and tokenizer."""
    present = {name: store.manifest.fingerprint for name, store in stores.items()}
    present["tokenizer"] = tokenizer.fingerprint
    if located is not None:
        present["encoder"] = located.fingerprint
    for kind, store in stores.items():
        pipeline = "ingestion" if kind == "tokens" else "embedding"
        for name, stored in store.manifest.fingerprints.items():
            expected = present.get(name, stored)
            if stored != expected:
                made = store.manifest.meta.get("encoder", {})
                by = (
                    f" ({made.get('name')}, revision {made.get('revision')}, dimension {made.get('dim')})"
                    if name == "encoder"
                    else ""
                )
                found.add(
                    "error",
                    name,
                    f"the {kind} in {store.directory} were made with {name} {stored}{by}, but the present {name} has "
                    f"fingerprint {expected}.",
                    count=len(store),
                    remedy=(
                        f"Restore the earlier settings, or remove the directory and run the {pipeline} pipeline again."
                    ),
                )


def _check_bytes(found: Findings, *stores: ShardStore, checksums: bool) -> bool:
    """Check that every shard exists, is readable, has the right columns and (on demand) the right checksum."""
    readable = True
    for store in stores:
        kind = store.manifest.kind
        try:
            store.check_files()
        except StoreError as error:
            found.add("error", _shard_check(error), f"{kind}: {error}", count=1)
            readable = False
            continue
        damaged = store.damaged_shards() if checksums else []
        if damaged:
            found.add(
                "error",
                "checksum",
                f"{kind}: {len(damaged)} of {len(store.manifest.shards)} shards in {store.directory} changed after "
                "they were written.",
                count=len(damaged),
                examples=damaged,
                remedy=(
                    "Run the pipeline that writes this store again: it finds damaged shards by their checksum and "
                    "writes them again. If the error returns, check the disk."
                ),
            )
        for number, shard in enumerate(store.manifest.shards):
            try:
                store.array(number, store.schema.names[0], touched=0)
            except StoreError as error:
                differs = kind == "latents" and isinstance(error, ShardSchemaError)
                found.add(
                    "error", "dimension" if differs else _shard_check(error), f"{kind}: {error}", count=shard.rows
                )
                readable = False
    return readable


def _shard_check(error: StoreError) -> str:
    """Return the name of the check that this error of a shard fails."""
    if isinstance(error, MissingShardError):
        return "missing shard"
    return "truncated shard" if isinstance(error, TruncatedShardError) else "unreadable shard"


def _check_shapes(found: Findings, latents: ShardStore, *, located: LocatedEncoder) -> bool:
    """Check the dimension against encoder and manifest; return whether there are vectors to be measured."""
    try:
        column = latents.fixed("latent")
    except StoreError as error:
        found.add("error", "columns", str(error))
        return False
    for what, expected in (("the encoder", located.dim), ("the manifest", latents.manifest.meta.get("dim"))):
        if expected is not None and expected != column.dim:
            found.add(
                "error",
                "dimension",
                f"{what} has dimension {expected}, but the stored vectors have {column.dim} dimensions.",
                count=len(latents),
                remedy="Choose the encoder (and encoder.truncate_dim) of the stored vectors, or embed again.",
            )
    return True


def check_vectors(
    found: Findings, latents: ShardStore, measured: statistics.Statistics, *, config: ValidationConfig, normalised: bool
) -> None:
    """Check for non-finite and zero vectors, unusual norms, duplicates, collapsed dimensions and drifting shards."""

    def ids(rows: npt.NDArray[np.int64]) -> list[str]:
        return [str(name) for name in latents.strings("id").take(rows[:5])]

    def rows(check: str, bad: npt.NDArray[np.int64], message: str, remedy: str, *, quarantine: bool = True) -> None:
        if len(bad):
            found.add("warning", check, f"{len(bad)} rows {message}", count=len(bad), examples=ids(bad), remedy=remedy)
            if quarantine:
                found.fail_rows(check, bad)

    again = "They are left out of the index. Embed these texts separately to find the cause."
    rows("finite", np.flatnonzero(~measured.finite_n), "contain NaN or infinity.", again)
    if (dimensions := np.flatnonzero(measured.bad_per_dimension_d)).size:
        found.add(
            "warning",
            "finite dimensions",
            f"{dimensions.size} dimensions contain NaN or infinity.",
            count=dimensions.size,
            examples=(f"dimension {j}: {measured.bad_per_dimension_d[j]} rows" for j in dimensions),
            remedy=(
                "If all dimensions are affected, a text breaks the encoder; if few are, look for overflow in its last "
                "layer (dtype)."
            ),
        )
    norms = measured.norm_n
    zero = measured.finite_n & (norms == 0)
    rows("zero", np.flatnonzero(zero), "are zero vectors.", again)
    good = measured.finite_n & ~zero
    if normalised:
        off = good & (np.abs(norms - 1) > config.norm_tolerance)
        message = f"have a norm that differs from 1 by more than {config.norm_tolerance:g}, but the encoder normalises."
        rows("norm", np.flatnonzero(off), message, again)
    elif good.any():
        low, high = np.quantile(norms[good], [0.25, 0.75])
        reach = config.norm_outlier_iqrs * (high - low)
        off = good & ((norms < low - reach) | (norms > high + reach))
        quarantine = config.on_norm_outlier == "quarantine"
        message = f"have a norm outside {low - reach:.4g} … {high + reach:.4g} (middle half {low:.4g} … {high:.4g})."
        rows(
            "norm",
            np.flatnonzero(off),
            message,
            "Read these texts; validation.on_norm_outlier decides what happens to them.",
            quarantine=quarantine,
        )
    _check_duplicates(found, measured, good, config=config, ids=ids)
    _check_dimensions(found, measured, config=config)
    for shard, distance in measured.drift:
        if distance > config.max_drift:
            found.add(
                "warning",
                "drift",
                f"the mean of shard {shard} lies {distance:.2f} standard deviations from the others', more than "
                f"{config.max_drift:g}.",
                count=1,
                examples=[shard],
                remedy=(
                    "Sorted or mixed sources cause this, and so does an encoder that changed during extraction. The "
                    "spot check distinguishes the two."
                ),
            )


def _check_duplicates(
    found: Findings, measured: statistics.Statistics, good: npt.NDArray[np.bool_], *, config: ValidationConfig, ids: Any
) -> None:
    candidates = np.flatnonzero(good)
    _, first, counts = np.unique(measured.digest_n[candidates], return_index=True, return_counts=True)
    repeated = np.ones(len(candidates), bool)
    repeated[first] = False
    later = candidates[repeated]
    if not len(later):
        return
    involved = int(counts[counts > 1].sum())
    fraction = involved / max(len(candidates), 1)
    found.add(
        "error" if fraction > config.max_duplicate_fraction else "warning",
        "duplicate vectors",
        f"{involved} rows ({100 * fraction:.2f} %) share their vector with a different text; at most "
        f"{100 * config.max_duplicate_fraction:.2f} % may do so.",
        count=involved,
        examples=ids(later),
        remedy=(
            "Texts that differ only in case or spacing may cause this; many duplicates indicate a broken encoder. "
            "validation.on_duplicate_vector: quarantine keeps the first row of each."
        ),
    )
    if config.on_duplicate_vector == "quarantine":
        found.fail_rows("duplicate vectors", later)


def _check_dimensions(found: Findings, measured: statistics.Statistics, *, config: ValidationConfig) -> None:
    dead = np.flatnonzero(measured.std_d <= config.collapsed_std)
    if len(dead):
        fraction = len(dead) / len(measured.std_d)
        found.add(
            "error" if fraction > config.max_collapsed_fraction else "warning",
            "collapsed dimensions",
            f"{len(dead)} of {len(measured.std_d)} dimensions do not vary (standard deviation at most "
            f"{config.collapsed_std:g}); at most {100 * config.max_collapsed_fraction:.2f} % may be collapsed.",
            count=len(dead),
            examples=dead,
            remedy=(
                "There is only one vector, and one alone does not vary: give more texts that differ."
                if len(np.unique(measured.digest_n[measured.finite_n])) == 1
                else "The encoder is constant in these dimensions: check its pooling and truncation. The normaliser "
                "maps them to 0."
            ),
        )
