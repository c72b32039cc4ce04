"""Labels of the records: their check, and the stores that an objective reads them from.

A label is the value of one key of a record's `meta`, or a function of its text. The classes are the labels of the
training split, sorted. The objective's option `label` names the key or the function; `answers` of an objective that
compares pairs are the only valid labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.corpus.filters import describe_function, load_function
from mm_ldlm.data.corpus.record import LABEL, PAIR, label_text, meta_value
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.latents.findings import Findings
from mm_ldlm.data.store import Manifest, ShardStore, StoreWriter
from mm_ldlm.data.store.fingerprint import fingerprint

LABEL_SCHEMA = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int64(), 1))])
NO_LABEL, UNKNOWN_LABEL, NO_PAIR = "no_label", "unknown_label", "no_pair"
"""Reasons of the quarantine."""
_WORDS = {
    NO_LABEL: "no label",
    UNKNOWN_LABEL: "a label that does not occur in the training split or is not an answer",
    NO_PAIR: "no second text",
}
_ROWS = 65_536


@dataclasses.dataclass(frozen=True)
class ReadLabels:
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


def read_labels(records: ShardStore, *, key: str, answers: Sequence[str] | None = None) -> ReadLabels:
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
    return ReadLabels(
        names, number_n, frozenset(known), {reason: rows for reason, rows in failing.items() if len(rows)}
    )


@dataclasses.dataclass(frozen=True)
class OfLabels(Feature):
    """Base of the stores that are made from the labels that an objective names."""

    objective: Any

    @property
    def key(self) -> str:
        return str(getattr(self.objective, "label", LABEL))

    @property
    def variant(self) -> str:
        return fingerprint([_described(self.key), self._answers])[:12]

    @property
    def _answers(self) -> tuple[str, ...] | None:
        return getattr(self.objective, "answers", None)

    def read(self, records: ShardStore) -> ReadLabels:
        return read_labels(records, key=self.key, answers=self._answers)


@dataclasses.dataclass(frozen=True)
class Labels(OfLabels):
    """Row i is record i: the number of its class, -1 for a record without a label."""

    name = kind = "labels"

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Write the class of every record; the manifest has the classes by name."""
        records, labels = inputs.records, self.read(inputs.records)
        writer = StoreWriter(workspace, kind=self.kind, schema=LABEL_SCHEMA)
        for start in range(0, len(records), _ROWS):
            stop = min(start + _ROWS, len(records))
            ids = records.window(start, stop, columns=["id"])["id"].combine_chunks()
            writer.append(_table(ids, labels.number_n[start:stop, None], LABEL_SCHEMA))
        return writer.finish(
            fingerprints={"records": records.manifest.fingerprint},
            meta={"classes": list(labels.names), "key": _described(self.key)},
        )

    def check(self, found: Findings, store: ShardStore, records: ShardStore) -> None:
        """Send records without a valid label to quarantine; fewer than two classes fail the contract."""
        labels = self.read(records)
        for reason, rows in labels.failing.items():
            found.add(
                "warning", reason, f"{len(rows)} records have {_WORDS[reason]}.", count=len(rows),
                remedy=f"They are in quarantine. Labels are read from '{self.key}' in the records' meta "
                "(objective.label).",
            )  # fmt: skip
            found.fail_rows(reason, rows)
        in_training = [name for name in labels.names if name in labels.in_training]
        if len(in_training) < 2:
            found.add(
                "error", "classes",
                f"expected at least two classes in the training split, found {in_training}.",
                count=len(in_training),
                remedy="Set objective.label to a key of the records' meta, or label_column of the sources.",
            )  # fmt: skip
        counts = np.bincount(labels.number_n[labels.number_n >= 0], minlength=len(labels.names))
        found.facts["classes"] = dict(zip(labels.names, counts.tolist(), strict=True))

    @classmethod
    def refuse_other(cls, store: ShardStore, *, objective: Any) -> None:
        """Refuse to train on labels of another key, or of a function whose code has changed."""
        key = Labels(objective).key
        if (written := store.manifest.meta.get("key")) == _described(key):
            return
        found = written["name"] if isinstance(written, dict) else written
        changed = ", but the code of its module has changed" if found == key else ""
        raise ConfigurationError(
            f"parameter 'objective.label' is '{key}'; the labels of the validated dataset are those of '{found}'"
            f"{changed}. Run `kedro run --pipelines=embedding,validation` with this label first, or restore the other "
            "label."
        )


@dataclasses.dataclass(frozen=True)
class LabelNames(OfLabels):
    """One row per class: its name as UTF-8 bytes that are padded with 0.

    Checkpoints contain this store, so that a run folder suffices to name the classes.
    """

    name = kind = "label_names"
    row_of = "class"

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        names = self.read(inputs.records).names
        encoded = [name.encode("utf-8") for name in names]
        width = max((len(name) for name in encoded), default=1)
        bytes_Kw = np.array([list(name.ljust(width, b"\0")) for name in encoded], np.uint8).reshape(len(names), width)
        schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.uint8(), width))])
        writer = StoreWriter(workspace, kind=self.kind, schema=schema)
        writer.append(_table(pa.array(names, pa.string()), bytes_Kw, schema))
        return writer.finish(meta={"classes": list(names)})


@dataclasses.dataclass(frozen=True)
class PairTokens(Feature):
    """The tokens of each record's second text, cut and padded to the longest length; only pads without one."""

    name = kind = "pair_tokens"

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        records, tokenizer, length = inputs.records, inputs.tokenizer, inputs.tokenizer.max_length
        schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int32(), length))])
        writer = StoreWriter(workspace, kind=self.kind, schema=schema)
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


def _described(key: str) -> str | dict[str, str]:
    """Describe the origin of labels: a key of `meta`, or the name and the digest of a function."""
    return describe_function(key) if ":" in key else key


def _table(ids: pa.Array, values: npt.NDArray[np.generic], schema: pa.Schema) -> pa.Table:
    flat = pa.array(values.reshape(-1), schema.field("value").type.value_type)
    return pa.Table.from_arrays([ids, pa.FixedSizeListArray.from_arrays(flat, values.shape[1])], schema=schema)
