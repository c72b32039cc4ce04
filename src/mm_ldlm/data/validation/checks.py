"""The list of checks, in an order in which a failure makes later ones pointless, and the report.

Findings do not raise errors here: `findings.enforce` raises them after the report is on disk.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import StoreError
from mm_ldlm.data.encoders import EncoderConfig
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.validation import texts, vectors
from mm_ldlm.data.validation.config import ValidationConfig
from mm_ldlm.data.validation.findings import NO_ROWS, Finding, failing_rows, plain
from mm_ldlm.data.validation.vectors import Statistics, Subject


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of validation.

    Attributes:
        report: plain JSON: passed, rows, valid, quarantined, quarantine, findings, encoder, statistics, fingerprints.
        failing: row numbers by reason; these rows go to quarantine and are left out of the index.
        statistics: data of the plots.
    """

    report: dict[str, Any]
    failing: dict[str, npt.NDArray[np.int64]]
    statistics: Statistics | None


def validate(
    plan: Mapping[str, Feature],
    inputs: Inputs,
    *,
    encoder: EncoderConfig,
    config: ValidationConfig,
    evaluation_sets: Mapping[str, Sequence[str]],
    seed: int,
) -> Outcome:
    """Check the stores against one another, the tokenizer and the encoder; `inputs` has the stores of all features."""
    latents, located = inputs.features.get("latents"), None
    if latents is not None:
        located = encoder.locate(expected=latents.manifest.fingerprints.get("encoder"))
    stores = {"records": inputs.records, "tokens": inputs.tokens, **inputs.features}
    subject = Subject(plan, inputs, stores, encoder, located, config, evaluation_sets, seed)
    found: list[Finding] = []
    for check in CHECKS:
        found += check(subject)
        if check is check_shards and any(finding.check == "shards" for finding in found):
            break  # the other checks read them
    found += check_quarantine(subject, failing_rows(found))
    for name, feature in plan.items():  # records that a feature refuses do not count against the fraction
        found += feature.check(inputs.features[name], inputs.records)
    failing = failing_rows(found)
    quarantined = len(np.unique(np.concatenate([NO_ROWS, *failing.values()])))
    report = {
        "passed": not any(finding.severity == "error" for finding in found),
        "rows": len(inputs.records),
        "valid": len(inputs.records) - quarantined,
        "quarantined": quarantined,
        "quarantine": {check: len(rows) for check, rows in sorted(failing.items())},
        "findings": plain(found),
        "encoder": None if located is None else located.describe(),
        "statistics": {} if subject.statistics is None else subject.statistics.summary(),
        "fingerprints": {name: store.manifest.fingerprint for name, store in stores.items()},
    }
    return Outcome(report, failing, subject.statistics)


def check_fingerprints(subject: Subject) -> Iterator[Finding]:
    """Check that each store was made from the present other stores, tokenizer and encoder."""
    present = {name: store.manifest.fingerprint for name, store in subject.stores.items()}
    present["tokenizer"] = subject.inputs.tokenizer.fingerprint
    if subject.located is not None:
        present["encoder"] = subject.located.fingerprint
    for name, store in subject.stores.items():
        for other, stored in store.manifest.fingerprints.items():
            if stored != present.get(other, stored):
                made = store.manifest.meta.get("encoder", {}) if other == "encoder" else {}
                by = "".join(f", {key} {made[key]}" for key in ("name", "revision", "dim") if key in made)
                yield Finding(
                    "error",
                    other,
                    f"the {name} in {store.directory} were made with {other} {stored}{by}, but the present {other} has "
                    f"fingerprint {present[other]}.",
                    f"Restore the earlier settings, or remove the directory and run the {_writer(name)} pipeline "
                    "again.",
                    count=len(store),
                )


def check_shards(subject: Subject) -> Iterator[Finding]:
    """Check that every shard exists, is readable, has the right columns and (on demand) the right checksum."""
    for name, store in subject.stores.items():
        changed = []
        for number, shard in enumerate(store.manifest.shards):
            try:
                shard.check(store.directory)
                if subject.config.verify_checksums and not shard.is_intact(store.directory):
                    changed.append(shard.name)
                store.array(number, store.schema.names[0], touched=0)
            except StoreError as error:
                yield Finding("error", "shards", f"{name}: {error}", count=shard.rows)
        if changed:
            yield Finding(
                "error",
                "checksum",
                f"{name}: {len(changed)} of {len(store.manifest.shards)} shards in {store.directory} changed after "
                "they were written.",
                f"Run the {_writer(name)} pipeline again: it finds damaged shards by their checksum and writes them "
                "again. If the error returns, check the disk.",
                count=len(changed),
                examples=changed,
            )


def check_ids(subject: Subject) -> Iterator[Finding]:
    """Check that row i of the tokens, and of the features with a row for each record, is row i of the records."""
    records = subject.inputs.records
    aligned = ["tokens", *(name for name, feature in subject.plan.items() if feature.row_of == "record")]
    for name in aligned:
        store = subject.stores[name]
        again = f"Remove {store.directory} and run the {_writer(name)} pipeline again."
        if len(store) != len(records):
            lacking = len(records) - len(store)
            yield Finding(
                "error",
                "alignment",
                f"there are {len(records)} records, but {len(store)} rows of {name}: "
                f"{f'{lacking} are missing' if lacking > 0 else f'{-lacking} are too many'}.",
                again,
                count=abs(lacking),
            )
        wrong, examples, elsewhere = texts.compare_ids(records, store)
        if len(wrong):
            how = f"{elsewhere} of them belong to other records nearby: rows were swapped or shifted"
            yield Finding(
                "error",
                "alignment",
                f"{len(wrong)} rows of {name} have another id than the record in the same row"
                f"{f' ({how})' if elsewhere else ' (ids that no record nearby has)'}.",
                f"The pairs cannot be trusted. {again}",
                count=len(wrong),
                examples=examples,
                failing=wrong,
            )


def check_quarantine(subject: Subject, failing: Mapping[str, npt.NDArray[np.int64]]) -> Iterator[Finding]:
    """Check that not too many rows failed."""
    rows, count = len(subject.inputs.records), len(np.unique(np.concatenate([NO_ROWS, *failing.values()])))
    if count > (most := subject.config.max_quarantine_fraction) * max(rows, 1):
        yield Finding(
            "error",
            "quarantine",
            f"{count} of {rows} rows ({100 * count / max(rows, 1):.2f} %) failed; at most {100 * most:.2f} % may fail.",
            "Read the reasons in quarantine_validation. If they are justified, raise "
            "validation.max_quarantine_fraction.",
            count=count,
        )


def _writer(name: str) -> str:
    """Return the pipeline that writes a store."""
    return "ingestion" if name in ("records", "tokens") else "embedding"


CHECKS: tuple[Callable[[Any], Iterator[Finding]], ...] = (
    check_fingerprints,
    check_shards,
    check_ids,
    texts.check_tokens,
    texts.check_unknown_tokens,
    texts.check_texts,
    vectors.check_vectors,
)
