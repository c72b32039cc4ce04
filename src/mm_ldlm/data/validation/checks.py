"""Check the stores and make the report; interface and registry of further checks.

Findings raise no errors here: `findings.enforce` raises them after the report has been saved.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.core import Registry, StoreError, setting
from mm_ldlm.data.corpus.record import PAIR, comparison_digest, described_by, group_of, meta_value, record_id
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.encoders import LocatedEncoder
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.store import ShardStore
from mm_ldlm.data.validation.findings import MAX_EXAMPLES, NO_ROWS, Finding, failing_rows, plain

_ROWS = 65_536
_UNKNOWN = ("rows", "rows_with_unknown")
_AGAIN = "Remove the token store and run the ingestion pipeline again."


@dataclasses.dataclass(frozen=True)
class Subject:
    """Stores and parameters that the checks read.

    Attributes:
        plan: the features that objective and model read.
        stores: records, tokens and the stores of the features, by name.
        located: the encoder of the latents; None without latents, in which case no encoder is compared.
        config: the section `validation`, with the keys of extras.
        sections: all typed sections that validation reads, by name.
        evaluation_sets: texts that must not be trained on, by the name of their set.
    """

    plan: Mapping[str, Feature]
    inputs: Inputs
    stores: Mapping[str, ShardStore]
    located: LocatedEncoder | None
    config: Any
    sections: Mapping[str, Any]
    evaluation_sets: Mapping[str, Sequence[str]]


class DataCheck(abc.ABC):
    """A check from the registry; it runs after `CHECKS`.

    Attributes:
        plots: catalog entries of its figures, with their captions in the report.
        statistics, figures: numbers for the report, and figures by name; `findings` sets both.
    """

    plots: ClassVar[Mapping[str, str]] = {}
    statistics: Mapping[str, Any] = {}
    figures: Mapping[str, Any] = {}

    @abc.abstractmethod
    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Check the stores."""


DATA_CHECKS = Registry("check of data", {}, group="data_checks")


def plots() -> dict[str, str]:
    """Return the captions of the figures of the data, by catalog entry."""
    own = {"plot_lengths": "Length of the sentences, in tokens."}
    return own | {key: words for name in DATA_CHECKS for key, words in DATA_CHECKS.load(name).plots.items()}


def validate(
    plan: Mapping[str, Feature],
    inputs: Inputs,
    *,
    sections: Mapping[str, Any],
    evaluation_sets: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.int64]], dict[str, Any]]:
    """Check the stores against one another, the tokenizer and the encoder; `inputs` has the stores of all features.

    Returns:
        The report (plain JSON: passed, rows, valid, quarantined, quarantine, findings, encoder, statistics,
        fingerprints); the numbers of the rows that go to quarantine instead of the index, by reason; and the figures
        of the checks, by the names of their plots.
    """
    latents, located = inputs.features.get("latents"), None
    if latents is not None:
        located = sections["encoder"].locate(expected=latents.manifest.fingerprints.get("encoder"))
    stores = {"records": inputs.records, "tokens": inputs.tokens, **inputs.features}
    subject = Subject(plan, inputs, stores, located, sections["validation"], sections, evaluation_sets)
    registered = [DATA_CHECKS.load(name)() for name in DATA_CHECKS]
    found: list[Finding] = []
    for check in (*CHECKS, *(each.findings for each in registered)):
        found += check(subject)
        if check is check_shards and any(finding.check == "shards" for finding in found):
            break  # the other checks read the shards
    found += check_quarantine(subject, found)
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
        "statistics": {key: value for each in registered for key, value in each.statistics.items()},
        "fingerprints": {name: store.manifest.fingerprint for name, store in stores.items()},
    }
    return report, failing, {name: figure for each in registered for name, figure in each.figures.items()}


def check_fingerprints(subject: Subject) -> Iterator[Finding]:
    """Check that each store was made from the current other stores, tokenizer and encoder."""
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
                    f"the {name} in {store.directory} were made with {other} {stored}{by}, but the current {other} has "
                    f"fingerprint {present[other]}.",
                    f"Restore the earlier settings, or remove the directory and run the {writer_of(name)} pipeline "
                    "again.",
                    count=len(store),
                )


def check_shards(subject: Subject) -> Iterator[Finding]:
    """Check that every shard exists, is readable, and has the right columns and, if requested, the right checksum."""
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
                f"Run the {writer_of(name)} pipeline again: it finds damaged shards by their checksum and writes them "
                "again. If the error returns, check the disk.",
                count=len(changed),
                examples=changed,
            )


def writer_of(name: str) -> str:
    """Return the pipeline that writes a store."""
    return "ingestion" if name in ("records", "tokens") else "embedding"


def check_ids(subject: Subject) -> Iterator[Finding]:
    """Check that row i of the tokens, and of features with a row for each record, belongs to row i of the records."""
    records = subject.inputs.records
    aligned = ["tokens", *(name for name, feature in subject.plan.items() if feature.row_of == "record")]
    for name in aligned:
        store = subject.stores[name]
        again = f"Remove {store.directory} and run the {writer_of(name)} pipeline again."
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
        wrong, examples = compare_ids(records, store)
        if len(wrong):
            yield Finding(
                "error",
                "alignment",
                f"{len(wrong)} rows of {name} have a different id than the record in the same row.",
                f"The pairs cannot be trusted. {again}",
                count=len(wrong),
                examples=examples,
                failing=wrong,
            )


def check_quarantine(subject: Subject, found: Sequence[Finding]) -> Iterator[Finding]:
    """Check that not too many rows failed; the finding names the check that most of them failed, and its remedy."""
    rows, failing = len(subject.inputs.records), failing_rows(found)
    count = len(np.unique(np.concatenate([NO_ROWS, *failing.values()])))
    if count > (most := subject.config.max_quarantine_fraction) * max(rows, 1):
        main = max(found, key=lambda finding: len(finding.failing))
        more = setting("validation.max_quarantine_fraction", math.ceil(100 * count / rows) / 100)
        leaving_out = f" If the rows of quarantine_validation are rightly left out, add {more}." * (2 * count < rows)
        yield Finding(
            "error",
            "quarantine",
            f"{count} of {rows} rows ({100 * count / max(rows, 1):.2f} %) failed; at most {100 * most:.2f} % may fail. "
            f"{main.message}",
            f"{main.remedy}{leaving_out}",
            count=count,
        )


# -- records and tokens ------------------------------------------------------------------------------------------------


def compare_ids(records: ShardStore, other: ShardStore) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the rows whose id differs from the record's, and descriptions of some of them."""
    wrong, examples = [NO_ROWS], list[str]()
    shared = min(len(records), len(other))
    for start in range(0, shared, _ROWS):
        ours, theirs = (
            store.window(start, min(start + _ROWS, shared), columns=["id"])["id"].combine_chunks()
            for store in (records, other)
        )
        bad = np.flatnonzero(~pc.fill_null(pc.equal(ours, theirs), False).to_numpy(zero_copy_only=False))
        wrong.append(bad + start)
        examples += [f"row {start + i}: record {ours[i]}, found {theirs[i]}" for i in bad[:MAX_EXAMPLES].tolist()]
    return np.concatenate(wrong), examples


def check_tokens(subject: Subject) -> Iterator[Finding]:
    """Check token ids (in the vocabulary, no pad or mask) and stored lengths (correct, positive, not too long)."""
    tokens, tokenizer = subject.inputs.tokens, subject.inputs.tokenizer
    outside, special, untrue, empty, long = ([NO_ROWS] for _ in range(5))
    for start in range(0, len(tokens), _ROWS):
        rows = slice(start, min(start + _ROWS, len(tokens)))
        values, offsets = tokens.lists("input_ids").take(rows)
        lengths = np.diff(offsets)
        row = np.repeat(np.arange(rows.start, rows.stop), lengths)
        outside.append(np.unique(row[(values < 0) | (values >= tokenizer.vocab_size)]))
        special.append(np.unique(row[(values == tokenizer.pad_id) | (values == tokenizer.mask_id)]))
        untrue.append(start + np.flatnonzero(tokens.gather("length", rows).to_numpy() != lengths))
        empty.append(start + np.flatnonzero(lengths == 0))
        long.append(start + np.flatnonzero(lengths > tokenizer.max_length))
    for check, rows_of, words, remedy in (
        ("token ids", outside, f"contain a token id outside 0..{tokenizer.vocab_size - 1}", _AGAIN),
        ("special tokens", special, "contain a pad or mask token, which texts must not contain", _AGAIN),
        ("token lengths", untrue, "have a stored length that differs from their number of tokens", _AGAIN),
        ("empty", empty, "have no tokens", "They are left out of the index."),
        ("length", long, f"have more tokens than tokenizer.max_length = {tokenizer.max_length}", _AGAIN),
    ):
        bad = np.concatenate(rows_of)
        if len(bad):
            yield Finding(
                "warning" if check == "empty" else "error",
                check,
                f"{len(bad)} rows {words}.",
                remedy,
                count=len(bad),
                examples=tokens.gather("id", bad[:MAX_EXAMPLES]).to_pylist(),
                failing=bad,
            )


def check_unknown_words(subject: Subject) -> Iterator[Finding]:
    """Count the held-out and training texts with words outside the vocabulary; many are a warning."""
    counts = subject.inputs.tokens.manifest.meta.get("splits", {})
    for name, splits in (("held-out", SPLITS[1:]), ("training", SPLITS[:1])):
        rows, unknown = (sum(counts.get(split, {}).get(key, 0) for split in splits) for key in _UNKNOWN)
        if unknown or (rows and name == "held-out"):
            yield Finding(
                "warning" if unknown > 0.01 * rows else "info",
                "unknown words",
                f"{unknown} of {rows} {name} texts ({100 * unknown / rows:.1f} %) have words outside the vocabulary.",
                "They are read and written as [UNK]. Set tokenizer.name=corpus and tokenizer.reduce_vocabulary=false "
                "for a vocabulary without unknown words."
                if unknown
                else "",
                count=unknown,
            )


def check_texts(subject: Subject) -> Iterator[Finding]:
    """Check that ids are digests of texts, that splits are disjoint, and that no evaluation sentence is in training.

    A text that describes an object, such as an image, has the split of the object, which is compared instead of the
    text.
    """
    records = subject.inputs.records
    n = len(records)
    digest_n, group_n, split_n = np.zeros(n, np.dtype("V16")), np.zeros(n, np.dtype("V16")), np.zeros(n, np.int8)
    forged: list[int] = []
    for start in range(0, n, _ROWS):
        table = records.window(start, min(start + _ROWS, n), columns=["id", "text", "split", "meta"])
        ids, all_texts, metas = (table[name].to_pylist() for name in ("id", "text", "meta"))
        described = [described_by(meta) for meta in metas]
        pairs = [meta_value(meta, PAIR) for meta in metas]
        compared = [about or text for about, text in zip(described, all_texts, strict=True)]
        packed = b"".join(comparison_digest(text, key=b"") for text in compared)
        digest_n[start : start + len(ids)] = np.frombuffer(packed, "V16")
        groups = [group and comparison_digest(group, key=b"") for group in map(group_of, metas)]
        group_n[start : start + len(ids)] = np.frombuffer(b"".join(each or bytes(16) for each in groups), "V16")
        codes = pc.index_in(table["split"].combine_chunks(), value_set=pa.array(SPLITS))
        split_n[start : start + len(ids)] = pc.fill_null(codes, -1).to_numpy()
        own = map(record_id, all_texts, pairs, described)
        forged += [start + i for i, (name, found) in enumerate(zip(own, ids, strict=True)) if name != found]
    for check, rows, words in (
        ("ids", np.array(forged, np.int64), "have an id that is not the digest of their text"),
        ("splits", np.flatnonzero(split_n < 0), f"are in no split ({', '.join(SPLITS)})"),
    ):
        if len(rows):
            yield Finding(
                "error",
                check,
                f"{len(rows)} records {words}.",
                "Run the ingestion pipeline again.",
                count=len(rows),
                examples=records.gather("id", rows[:MAX_EXAMPLES]).to_pylist(),
                failing=rows if check == "ids" else NO_ROWS,
            )
    if n and not (split_n == SPLITS.index("test")).any():
        yield Finding(
            "warning",
            "held-out rows",
            f"none of {n} records is in the split 'test': sampling and evaluation will have no examples.",
            "Set ingestion.splits.test, or the split of a source.",
        )
    words_n2 = digest_n.view("<u8").reshape(-1, 2)
    yield from _repeated(records, words_n2, split_n)
    yield from _divided(records, group_n.view("<u8").reshape(-1, 2), split_n)
    for name, sentences in subject.evaluation_sets.items():
        yield from _leaked(subject, words_n2, split_n, name=name, sentences=sentences)


def _repeated(
    records: ShardStore, words_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8]
) -> Iterator[Finding]:
    """Find texts that occur twice, in two splits or in one."""
    order, same, across = _neighbours(words_n2, split_n)
    if across.any():
        rows = order[1:][across]
        yield Finding(
            "error",
            "split leakage",
            f"{len(rows)} texts, or what they describe, are in more than one split (apart from case and spacing).",
            "Run the ingestion pipeline again; sources with their own splits must not repeat texts between splits.",
            count=len(rows),
            examples=records.gather("text", rows[:MAX_EXAMPLES]).to_pylist(),
        )
    if within := int((same & ~across).sum()):
        yield Finding(
            "info",
            "duplicate texts",
            f"{within} records repeat a text of the same split (apart from case and spacing), or what it describes.",
            "Near-duplicate removal (ingestion.near_duplicates) removes them.",
            count=within,
        )


def _divided(records: ShardStore, group_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8]) -> Iterator[Finding]:
    """Find groups, and documents in pieces, whose records are in more than one split."""
    grouped = np.flatnonzero(group_n2.any(1))
    order, _, across = _neighbours(group_n2[grouped], split_n[grouped])
    rows = grouped[order[1:][across]]
    if count := len(np.unique(group_n2[rows], axis=0)):
        yield Finding(
            "error",
            "split leakage",
            f"{count} documents or groups have records in more than one split.",
            "Run the ingestion pipeline again; sources with their own splits must not divide a group.",
            count=count,
            examples=records.gather("text", rows[:MAX_EXAMPLES]).to_pylist(),
        )


def _neighbours(
    words_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Sort digests; return the order, and whether each next one is equal, and equal but in another split."""
    order = np.lexsort((split_n, words_n2[:, 1], words_n2[:, 0]))
    same = (words_n2[order][1:] == words_n2[order][:-1]).all(1)
    return order, same, same & (split_n[order][1:] != split_n[order][:-1])


def _leaked(
    subject: Subject, words_n2: npt.NDArray[np.uint64], split_n: npt.NDArray[np.int8], *, name: str,
    sentences: Sequence[str],
) -> Iterator[Finding]:  # fmt: skip
    """Find the training texts that occur in an evaluation set."""
    wanted = {comparison_digest(text, key=b"") for text in sentences}
    first = np.array([int.from_bytes(digest[:8], "little") for digest in wanted], np.uint64)
    near = np.flatnonzero((split_n == 0) & np.isin(words_n2[:, 0], first))
    rows = np.array([row for row in near.tolist() if words_n2[row].tobytes() in wanted], np.int64)
    if len(rows):
        remove = subject.config.on_leakage == "remove"
        yield Finding(
            "warning",
            "evaluation leakage",
            f"{len(rows)} training texts occur in the evaluation set '{name}'. "
            f"{'They are in quarantine.' if remove else 'They remain in the training split.'}",
            "validation.on_leakage decides: remove or report.",
            count=len(rows),
            examples=subject.inputs.records.gather("text", rows[:MAX_EXAMPLES]).to_pylist(),
            failing=rows if remove else NO_ROWS,
        )


CHECKS: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    check_fingerprints,
    check_shards,
    check_ids,
    check_tokens,
    check_unknown_words,
    check_texts,
)
"""Checks in order: after a failure, later ones may be meaningless."""
