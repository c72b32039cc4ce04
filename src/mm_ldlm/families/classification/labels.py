"""Labels of the records: the features that a classification objective reads.

A label is the value of one key of a record's `meta`, or a function of its text, as `objective.label` says. The classes
are the labels of the training split, sorted, or `objective.answers` where they are not None (`objective.HeadConfig`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mm_ldlm.core import ConfigurationError, foreign_code, setting
from mm_ldlm.data.corpus.filters import describe_function, load_function
from mm_ldlm.data.corpus.record import LABEL, PAIR, label_text, meta_value
from mm_ldlm.data.features import Feature, Inputs
from mm_ldlm.data.store import Manifest, ShardStore, fixed_lists, write_store
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.data.validation.findings import Finding

NO_LABEL, UNKNOWN_LABEL, NO_PAIR = -1, -2, -3
"""Values of records without a usable label"""
UNUSABLE = {
    "no_label": (NO_LABEL, "no label"),
    "unknown_label": (UNKNOWN_LABEL, "a label that does not occur in the training split or is not an answer"),
    "no_pair": (NO_PAIR, "no second text"),
}
"""Reason of the quarantine → (value, words)"""
_AT, _ROWS = "parameter 'objective.label'", 65_536


@dataclasses.dataclass(frozen=True)
class Labels(Feature):
    """The number of each record's class, or a negative number for a record without a usable label."""

    objective: Any

    name = kind = "labels"

    @property
    def variant(self) -> str:
        return fingerprint([_origin(self.objective.label), self.objective.answers])[:12]

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        """Write the class of every record; the manifest has the classes by name."""
        key, answers, records = self.objective.label, self.objective.answers, inputs.records
        made_by = {"records": records.manifest.fingerprint, "label": self.variant}
        if (kept := Manifest.finished(workspace, made_by)) is not None:
            return kept
        function = load_function(key, at=_AT) if ":" in key else None
        found: list[tuple[str | None, bool, bool]] = []
        for table in records.iter_tables(_ROWS, columns=["text", "split", "meta"]):
            for row in table.to_pylist():
                with foreign_code(lambda reason: ConfigurationError(f"{_AT}: {key} raised {reason}. Correct it.")):
                    label = label_text(function(row["text"]) if function else meta_value(row["meta"], key))
                paired = answers is None or isinstance(meta_value(row["meta"], PAIR), str)
                found.append((label, paired, row["split"] == "train"))
        trained = {label for label, _, train in found if train and label is not None}
        names = sorted(trained) if answers is None else list(answers)
        numbers = {name: number for number, name in enumerate(names)} | {None: NO_LABEL}
        values = [numbers.get(label, UNKNOWN_LABEL) if paired else NO_PAIR for label, paired, _ in found]
        columns = {"id": records.gather("id", slice(None)), "value": fixed_lists(np.array(values, np.int64)[:, None])}
        schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int64(), 1))])
        about = {"classes": names, "trained": sorted(trained & set(names)), "key": _origin(self.objective.label)}
        return write_store(workspace, [columns], kind=self.kind, schema=schema, fingerprints=made_by, meta=about)

    def refuse_sources(self, sources: Sequence[Any]) -> None:
        key, found = self.objective.label, [source.meta_keys for source in sources]
        if ":" in key:
            load_function(key, at=_AT)
            return
        if None in found or key in (known := set[str]().union(*found)):
            return
        raise ConfigurationError(
            "parameter 'objective.label': expected a key that the sources give to their records "
            f"({', '.join(sorted(known)) or 'none here'}), found '{key}'. Add {setting('objective.label', LABEL)}"
            + (
                "."
                if LABEL in known
                else f" and {setting('ingestion.label_column', 'COLUMN' if key == LABEL else key)}."
            )
        )

    def check(self, store: ShardStore, records: ShardStore) -> Iterator[Finding]:
        """Quarantine the records without a usable label; fewer than two classes fail the contract."""
        number_n, about = store.fixed("value").take(slice(None))[:, 0], store.manifest.meta
        for reason, (value, words) in UNUSABLE.items():
            rows = np.flatnonzero(number_n == value)
            if len(rows):
                remedy = f"They are in quarantine. Their label is '{self.objective.label}' (objective.label)."
                yield Finding("warning", reason, f"{len(rows)} records have {words}.", remedy, failing=rows)
        counts = np.bincount(number_n[number_n >= 0], minlength=len(about["classes"])).tolist()
        classes = [f"{name}: {count}" for name, count in zip(about["classes"], counts, strict=True)]
        if len(trained := about["trained"]) < 2:
            words = f"expected at least two classes in the training split, found {trained}."
            remedy = "Set objective.label to a key of the records' meta, or label_column of the sources."
            yield Finding("error", "classes", words, remedy, count=len(trained))
        else:
            yield Finding("info", "classes", f"the records have {len(classes)} classes.", examples=classes)

    @classmethod
    def refuse_other(cls, store: ShardStore, *, objective: Any) -> None:
        """Refuse to train on labels of another key, or of a function whose code has changed.

        Raises:
            ConfigurationError: the store was made from other labels than the objective's.
        """
        key, made_from = objective.label, store.manifest.meta["key"]
        if made_from == _origin(key):
            return
        found = made_from["name"] if isinstance(made_from, dict) else made_from
        changed = ", but the code of its module has changed" if found == key else ""
        raise ConfigurationError(
            f"parameter 'objective.label' is '{key}'; the labels of the validated dataset come from '{found}'"
            f"{changed}. Run `kedro run --pipelines=embedding,validation` with this label first, or restore the other "
            "label."
        )


@dataclasses.dataclass(frozen=True)
class LabelNames(Feature):
    """The names of the classes, one row each, as UTF-8 bytes that are padded with 0; checkpoints contain them."""

    objective: Any

    name = kind = "label_names"
    row_of = "class"
    made_from = ("labels",)

    @property
    def variant(self) -> str:
        return Labels(self.objective).variant

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        labels = inputs.features["labels"].manifest
        names = labels.meta["classes"]
        width = max((len(name.encode()) for name in names), default=1)
        schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.uint8(), width))])
        columns = {"id": names, "value": [list(name.encode().ljust(width, b"\0")) for name in names]}
        return write_store(
            workspace, [columns], kind=self.kind, schema=schema, fingerprints={"labels": labels.fingerprint},
            meta={"classes": names},
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PairTokens(Feature):
    """The tokens of each record's second text, cut and padded to the longest length; only pads without one."""

    name = kind = "pair_tokens"

    def make(self, inputs: Inputs, workspace: Path) -> Manifest:
        records, tokenizer = inputs.records, inputs.tokenizer
        made_by = {"records": records.manifest.fingerprint, "tokenizer": tokenizer.fingerprint}
        if (kept := Manifest.finished(workspace, made_by)) is not None:
            return kept
        length = tokenizer.max_length
        schema = pa.schema([("id", pa.string()), ("value", pa.list_(pa.int32(), length))])

        def tables() -> Iterator[dict[str, Any]]:
            for table in records.iter_tables(_ROWS, columns=["id", "meta"]):
                pairs = [meta_value(meta, PAIR) for meta in table.column("meta").to_pylist()]
                rows = tokenizer.encode([pair if isinstance(pair, str) else "" for pair in pairs])
                values = [[*ids[:length], *[tokenizer.pad_id] * (length - len(ids))] for ids in rows]
                yield {"id": table.column("id"), "value": values}

        return write_store(
            workspace, tables(), kind=self.kind, schema=schema, fingerprints=made_by, meta={"max_length": length}
        )


def _origin(key: str) -> str | dict[str, str]:
    """Describe the origin of labels: a key of `meta`, or the name and the digest of a function."""
    return describe_function(key, at=_AT) if ":" in key else key
