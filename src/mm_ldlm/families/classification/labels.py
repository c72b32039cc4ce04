"""Labels of the records: their check, and the stores that an objective reads them from.

A label is the value of one key of a record's `meta`, or a function of its text. The classes are the labels of the
training split, sorted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.filters import describe_function, load_function
from mm_ldlm.data.corpus.record import PAIR, label_text, meta_value
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.latents.checks import Outcome
from mm_ldlm.data.latents.findings import Finding
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter

LABEL_SCHEMA = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int64(), 1))])
"""Row i is record i; `value` is the number of its class, -1 for a record without a label."""
NO_LABEL, UNKNOWN_LABEL, NO_PAIR = "no_label", "unknown_label", "no_pair"
"""Reasons of the quarantine."""
_ROWS = 65_536


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels of all records.

    Attributes:
        names: the classes: the labels of the training split, sorted, or the answers of a comparison.
        number_n: class of each record, (n,) int64; -1 without a valid label.
        in_training: the labels that occur in the training split.
        failing: reason → rows (m,) that cannot be used.
    """

    names: tuple[str, ...]
    number_n: npt.NDArray[np.int64]
    in_training: frozenset[str]
    failing: dict[str, npt.NDArray[np.int64]]


def read_labels(records: ShardStore, *, key: str, answers: Sequence[str] | None = None) -> Labels:
    """Read the label of every record: text, a whole number, or true or false.

    `key` is a key of `meta`, or a function `package.module:function` that receives the text and returns its label, or
    None if it has none. `answers` are the only valid labels of a comparison, whose records also need a second text.
    """
    function = load_function(key, at="parameter 'objective.label'") if ":" in key else None
    labels: list[str | None] = []
    train: list[bool] = []
    paired: list[bool] = []
    for table in records.iter_tables(_ROWS, columns=["text", "split", "meta"]):
        metas = table.column("meta").to_pylist()
        if function is not None:
            labels += [label_text(function(text)) for text in table.column("text").to_pylist()]
        else:
            labels += [label_text(meta_value(meta, key)) for meta in metas]
        train += [split == "train" for split in table.column("split").to_pylist()]
        if answers is not None:
            paired += [isinstance(meta_value(meta, PAIR), str) for meta in metas]
    known = {label for label, used in zip(labels, train, strict=True) if used and label is not None}
    names = tuple(sorted(known)) if answers is None else tuple(answers)
    number_of = {name: number for number, name in enumerate(names)}
    number_n = np.array([number_of.get(label or "", -1) for label in labels], np.int64)
    absent_n = np.array([label is None for label in labels], bool)
    failing = {NO_LABEL: np.flatnonzero(absent_n), UNKNOWN_LABEL: np.flatnonzero((number_n < 0) & ~absent_n)}
    if answers is not None:
        failing[NO_PAIR] = np.flatnonzero(~np.array(paired, bool))
    return Labels(names, number_n, frozenset(known), {reason: rows for reason, rows in failing.items() if len(rows)})


def with_labels(outcome: Outcome, labels: Labels, *, key: str) -> Outcome:
    """Add the records without a valid label to the result of validation.

    They do not count against `validation.max_quarantine_fraction`, because some sources of a mixture may have no
    labels. Fewer than two classes fail the contract.
    """
    findings = [
        Finding(
            severity="warning",
            check=reason,
            message=f"{len(rows)} records have {_WORDS[reason]}.",
            count=len(rows),
            remedy=f"They are in quarantine. Labels are read from '{key}' in the records' meta (objective.label).",
        )
        for reason, rows in labels.failing.items()
    ]
    in_training = [name for name in labels.names if name in labels.in_training]
    if len(in_training) < 2:
        findings.append(
            Finding(
                severity="error",
                check="classes",
                message=f"expected at least two classes in the training split, found {in_training}.",
                count=len(in_training),
                remedy="Set objective.label to a key of the records' meta, or label_column of the sources.",
            )
        )
    failing = outcome.failing | labels.failing
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *failing.values()]))
    listed = [{**dataclasses.asdict(finding), "examples": []} for finding in findings]
    counts = np.bincount(labels.number_n[labels.number_n >= 0], minlength=len(labels.names))
    order = {"error": 0, "warning": 1, "info": 2}
    report = {
        **outcome.report,
        "passed": outcome.report["passed"] and len(in_training) >= 2,
        "valid": outcome.report["rows"] - len(rows),
        "quarantined": len(rows),
        "quarantine": {reason: len(found) for reason, found in sorted(failing.items())},
        "findings": sorted([*outcome.report["findings"], *listed], key=lambda finding: order[finding["severity"]]),
        "classes": dict(zip(labels.names, counts.tolist(), strict=True)),
    }
    return dataclasses.replace(outcome, report=report, failing=failing)


# -- stores ------------------------------------------------------------------------------------------------------------


def write_labels(records: ShardStore, index: ShardStore, labels: Labels, workspace: Path, *, key: str) -> Manifest:
    """Write the class of every record; the manifest has the classes by name. Every example of `index` has a class."""
    writer = StoreWriter(workspace, kind="labels", schema=LABEL_SCHEMA)
    for start in range(0, len(records), _ROWS):
        stop = min(start + _ROWS, len(records))
        ids = records.window(start, stop, columns=["id"])["id"].combine_chunks()
        writer.append(_table(ids, labels.number_n[start:stop, None], LABEL_SCHEMA))
    return writer.finish(
        fingerprints={"records": records.manifest.fingerprint, "index": index.manifest.fingerprint},
        meta={"classes": list(labels.names), "key": _described(key)},
    )


def refuse_other_labels(store: ShardStore, *, key: str) -> None:
    """Refuse to train on labels of another key, or of a function whose code has changed.

    Raises:
        ConfigurationError: the store was written with other labels than those of `key`.
    """
    if (written := store.manifest.meta.get("key")) == _described(key):
        return
    found = written["name"] if isinstance(written, dict) else written
    changed = ", but the code of its module has changed" if found == key else ""
    raise ConfigurationError(
        f"parameter 'objective.label' is '{key}'; the labels of the validated dataset are those of '{found}'{changed}. "
        "Run `kedro run --pipeline=validation` with this label first, or restore the other label."
    )


def _described(key: str) -> str | dict[str, str]:
    """Describe the origin of labels: a key of `meta`, or the name and the digest of a function."""
    return describe_function(key) if ":" in key else key


def write_label_names(labels: Labels, workspace: Path) -> Manifest:
    """Write the names of the classes, one row each, as UTF-8 bytes that are padded with 0.

    Checkpoints contain this store, so that a run folder suffices to name the classes.
    """
    encoded = [name.encode("utf-8") for name in labels.names]
    width = max((len(name) for name in encoded), default=1)
    bytes_Kw = np.array([list(name.ljust(width, b"\0")) for name in encoded], np.uint8).reshape(len(encoded), width)
    schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.uint8(), width))])
    writer = StoreWriter(workspace, kind="label_names", schema=schema)
    if len(encoded):
        writer.append(_table(pa.array(labels.names, pa.string()), bytes_Kw, schema))
    return writer.finish(meta={"classes": list(labels.names)})


def write_pair_tokens(records: ShardStore, tokenizer: TextTokenizer, workspace: Path) -> Manifest:
    """Tokenise the second text of every record, cut and padded to the longest length; pads alone without one."""
    length = tokenizer.max_length
    schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int32(), length))])
    writer = StoreWriter(workspace, kind="pair_tokens", schema=schema)
    for table in records.iter_tables(_ROWS, columns=["id", "meta"]):
        pairs = [meta_value(meta, PAIR) for meta in table.column("meta").to_pylist()]
        rows = tokenizer.encode([pair if isinstance(pair, str) else "" for pair in pairs])
        ids_nL = np.full((len(rows), length), tokenizer.pad_id, np.int32)
        for row, ids in enumerate(rows):
            ids_nL[row, : min(len(ids), length)] = ids[:length]
        writer.append(_table(table.column("id").combine_chunks(), ids_nL, schema))
    return writer.finish(
        fingerprints={"records": records.manifest.fingerprint, "tokenizer": tokenizer.fingerprint},
        meta={"max_length": length},
    )


_WORDS = {
    NO_LABEL: "no label",
    UNKNOWN_LABEL: "a label that does not occur in the training split or is not an answer",
    NO_PAIR: "no second text",
}


def _table(ids: pa.Array, values: npt.NDArray[np.generic], schema: pa.Schema) -> pa.Table:
    flat = pa.array(values.reshape(-1), schema.field("value").type.value_type)
    return pa.Table.from_arrays([ids, pa.FixedSizeListArray.from_arrays(flat, values.shape[1])], schema=schema)
