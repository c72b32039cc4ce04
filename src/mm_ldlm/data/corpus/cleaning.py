"""Cleaning: assign the splits of the texts that passed their tests (`row_tests`), and remove duplicates.

The tests run in this order: readable text, length, language, number of tokens, duplicates. Every row is counted as
accepted, as a duplicate, or as quarantined.

A text with an image is a duplicate only if the same text occurs with the same image; the image alone decides its split,
so that no image is in two splits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.counts import Counts
from mm_ldlm.data.corpus.dedup import DigestMap, NearDuplicates, as_words
from mm_ldlm.data.corpus.normalisation import comparison_digest, comparison_form
from mm_ldlm.data.corpus.quarantine import Quarantine
from mm_ldlm.data.corpus.record import PAIR, RECORD_SCHEMA, meta_value, whole_text
from mm_ldlm.data.corpus.row_tests import Candidate, Tested
from mm_ldlm.data.corpus.sources.base import HELD_OUT
from mm_ldlm.data.corpus.splits import SPLITS, splits_of
from mm_ldlm.data.store import ShardStore
from mm_ldlm.extras.own_vectors.store import vector_table
from mm_ldlm.families.images.decoding import digest_of

_SPLIT_NUMBER: dict[str, int] = {name: number for number, name in enumerate(SPLITS)}


class Cleaner:
    """Cleans tested chunks, in the order of the sources.

    It keeps the digests of the accepted texts and the rows that wait for the next shard.
    """

    def __init__(self, config: IngestionConfig, counts: Counts, *, vector_dim: int | None = None) -> None:
        self.config, self.counts = config, counts
        self._vector_dim = vector_dim
        self._vectors: list[npt.NDArray[np.float32]] = []
        self._key = config.splits.key.encode()
        self._ids = DigestMap()
        self._forms = DigestMap()
        self._near = NearDuplicates(config.near_duplicates) if config.near_duplicates else None
        self._accepted: dict[str, list[str | None]] = {name: [] for name in RECORD_SCHEMA.names}
        self._quarantine = Quarantine(counts)
        self._labels = [source.label for source in config.sources]

    # -- duplicates and splits ----------------------------------------------------------------------------------------

    def clean(self, tested: Tested) -> None:
        """Sort the rows of a chunk into accepted, duplicate or quarantined."""
        counts = self.counts
        for source, number in tested.read.items():
            counts.read[source] += number
        for source, number in tested.from_splitting.items():
            counts.from_splitting[source] += number
        counts.truncated += tested.truncated
        for refusal in tested.refusals:
            self._quarantine.add(
                refusal.source, self._labels[refusal.source], file=refusal.file, line=refusal.line,
                reason=refusal.reason, detail=refusal.detail, text=refusal.text,
            )  # fmt: skip
        if tested.candidates:
            self._remove_duplicates(tested)

    def _remove_duplicates(self, tested: Tested) -> None:
        candidates, digests, forms = tested.candidates, tested.ids, tested.forms
        id_words, form_words = as_words(digests), as_words(forms)
        by_hash = splits_of(form_words[:, 0], self.config.splits).tolist()
        known_ids, known_forms = self._ids.lookup(id_words).tolist(), self._forms.lookup(form_words).tolist()
        new_ids: set[bytes] = set()
        new_forms: dict[bytes, int] = {}
        taken: list[int] = []
        taken_splits: list[int] = []
        for i, candidate in enumerate(candidates):
            split = self._split_number(candidate.row.split, by_hash[i], form_words[i, 1])
            if known_ids[i] >= 0 or digests[i] in new_ids:
                self._duplicate(candidate, "exact")
                continue
            elsewhere = known_forms[i] if known_forms[i] >= 0 else new_forms.get(forms[i], split)
            if elsewhere != split:
                place = f"in_{SPLITS[elsewhere]}"
                self._duplicate(candidate, f"{place}_but_for_case" if candidate.row.image is None else f"image_{place}")
                continue
            if self._near is not None and candidate.row.image is None:
                given = tested.signatures
                sketch = self._near.signature(candidate.form) if given is None else given[i]
                if self._near.seen(sketch):
                    self._duplicate(candidate, "near")
                    continue
                self._near.add(sketch)
            new_ids.add(digests[i])
            new_forms[forms[i]] = split
            taken.append(i)
            taken_splits.append(split)
            self._accept(candidate, digests[i].hex(), SPLITS[split])
        self._ids.add(id_words[taken], np.zeros(len(taken), np.uint8))
        fresh = {forms[i]: (i, split) for i, split in zip(taken, taken_splits, strict=True) if known_forms[i] < 0}
        rows = [i for i, _ in fresh.values()]
        self._forms.add(form_words[rows], np.array([split for _, split in fresh.values()], np.uint8))

    def _split_number(self, split: str | None, by_hash: int, word: np.uint64) -> int:
        """Return the number of a row's split: its own, or that of the hash.

        Rows that are held out are divided by another word of the digest, because a hash split with this key may be what
        has held them out.
        """
        if split is None:
            return by_hash
        if split != HELD_OUT:
            return _SPLIT_NUMBER[split]
        fractions = self.config.splits
        part = fractions.test / ((fractions.test + fractions.validation) or 1.0)
        return _SPLIT_NUMBER["test" if float(word) / 2.0**64 < part else "validation"]

    def restore(self, records: ShardStore) -> None:
        """Restore the state of an interrupted run from the records that it committed."""
        for table in records.iter_tables(columns=["id", "text", "split", "meta"]):
            texts = table.column("text").to_pylist()
            images = [digest_of(meta) for meta in table.column("meta").to_pylist()]
            splits = np.array([_SPLIT_NUMBER[split] for split in table.column("split").to_pylist()], np.uint8)
            self._ids.add(
                as_words([bytes.fromhex(i) for i in table.column("id").to_pylist()]), np.zeros(len(texts), np.uint8)
            )
            keys = [image or text for text, image in zip(texts, images, strict=True)]
            forms = as_words([comparison_digest(key, key=self._key) for key in keys])
            _, first = np.unique(forms, axis=0, return_index=True)
            first = np.sort(first)
            first = first[self._forms.lookup(forms[first]) < 0]
            self._forms.add(forms[first], splits[first])
            if self._near is not None:
                for text, image, meta in zip(texts, images, table.column("meta").to_pylist(), strict=True):
                    if image is None:
                        whole = whole_text(text, meta_value(meta, PAIR))
                        self._near.add(self._near.signature(comparison_form(whole)))

    # -- tables -----------------------------------------------------------------------------------------------------

    @property
    def num_accepted_waiting(self) -> int:
        """Number of accepted rows that are not yet in a shard."""
        return len(self._accepted["id"])

    @property
    def num_quarantined_waiting(self) -> int:
        """Number of quarantined rows that are not yet in a shard."""
        return len(self._quarantine)

    def take_tables(self) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """Return tables of the rows accepted, of the rows quarantined since the last call, and of the vectors of the
        accepted rows (None without vectors)."""
        accepted = pa.table(self._accepted, schema=RECORD_SCHEMA)
        vectors = None
        if self._vector_dim is not None:
            vectors = vector_table(self._accepted["id"], self._vectors, dim=self._vector_dim)
            self._vectors = []
        self._accepted = {name: [] for name in RECORD_SCHEMA.names}
        return accepted, self._quarantine.take_table(), vectors

    def _accept(self, candidate: Candidate, identity: str, split: str) -> None:
        self.counts.accepted[candidate.source] += 1
        self.counts.splits[split] += 1
        columns = self._accepted
        columns["id"].append(identity)
        columns["text"].append(candidate.text)
        columns["source"].append(self._labels[candidate.source])
        columns["split"].append(split)
        columns["meta"].append(candidate.meta)
        if candidate.row.vector is not None:
            self._vectors.append(candidate.row.vector)

    def _duplicate(self, candidate: Candidate, kind: str) -> None:
        self.counts.duplicates[candidate.source] += 1
        self.counts.duplicates_by[kind] += 1
