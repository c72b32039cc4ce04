"""The ingestion report: the outcome of every row, and statistics of the tokens."""

from __future__ import annotations

import logging
from typing import Any

from mm_ldlm.core.errors import ValidationError
from mm_ldlm.data.store import Manifest

log = logging.getLogger(__name__)


def ingestion_report(preparation: dict[str, Any], tokens: Manifest) -> dict[str, Any]:
    """Combine the report of `ingest` with the counts of the token store, and log that every row is accounted for.

    Raises:
        ValidationError: The rows read are not the sum of accepted, duplicates and quarantined, or the token store was
            made from other records.
    """
    parts = {name: int(preparation[name]) for name in ("accepted", "duplicates", "quarantined")}
    if preparation["rows_in"] != sum(parts.values()):
        raise ValidationError(
            f"{preparation['rows_in']} rows were read, but {parts} sum to {sum(parts.values())}: rows were lost. "
            "This is a bug in mm_ldlm: please report it with the parameters."
        )
    if tokens.rows != parts["accepted"]:
        raise ValidationError(
            f"{parts['accepted']} records were accepted, but the token store has {tokens.rows} rows: it was made "
            f"from other records. Run the whole ingestion pipeline again."
        )
    if tokens.fingerprints.get("records") != preparation["fingerprint"]:
        raise ValidationError(
            "the token store was made from other records than those of this report. Run the ingestion pipeline again."
        )
    log.info("ingestion: %s", conservation(preparation))
    lengths = {int(length): count for length, count in tokens.meta["lengths"].items()}
    return {
        **preparation,
        "conservation": conservation(preparation),
        "tokens": {
            "vocab_size": tokens.meta["vocab_size"],
            "base_vocab_size": tokens.meta["base_vocab_size"],
            "max_length": tokens.meta["max_length"],
            "splits": tokens.meta["splits"],
            "lengths": {
                "mean": _mean(lengths),
                **{f"p{percent}": _percentile(lengths, percent) for percent in (5, 50, 95, 100)},
            },
            "length_histogram": tokens.meta["lengths"],
        },
    }


def conservation(preparation: dict[str, Any]) -> str:
    """Describe where all rows are: "read + from splitting = accepted + duplicates + quarantined", with reasons."""
    pieces = int(preparation.get("rows_from_splitting", 0))
    before = f"{preparation['rows_in'] - pieces} rows read" + (f" + {pieces} from splitting" if pieces else "")
    after = [f"{preparation[name]} {name}" for name in ("accepted", "duplicates", "quarantined")]
    for place, reasons in ((1, "duplicates_by_kind"), (2, "quarantined_by_reason")):
        if counts := preparation.get(reasons):
            after[place] += f" ({', '.join(f'{count} {reason}' for reason, count in counts.items())})"
    return f"{before} = {' + '.join(after)}"


def _mean(lengths: dict[int, int]) -> float:
    return round(sum(length * count for length, count in lengths.items()) / max(1, sum(lengths.values())), 3)


def _percentile(lengths: dict[int, int], percent: int) -> int:
    """Return the smallest length that at least `percent` percent of the rows do not exceed."""
    wanted, seen = percent / 100 * sum(lengths.values()), 0
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= wanted:
            return length
    return 0
