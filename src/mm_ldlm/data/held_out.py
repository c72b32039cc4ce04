"""Held-out sentences, and other sentences of a split, with their tokens and latents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_ldlm.core import StoreError
from mm_ldlm.data.dataset_manifest import Dataset

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sentences:
    """Sentences with their tokens and latents.

    Attributes:
        ids: ids of the records.
        texts: texts of the records.
        sources: names of the sources of the records.
        tokens: token ids of each text, without padding.
        latents_nd: (n, d) float32 raw encoder vectors; None if the dataset has no latents.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    sources: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    latents_nd: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def latents(self) -> npt.NDArray[np.float32]:
        """Raw encoder vectors (n, d) float32.

        Raises:
            StoreError: the dataset has no latents.
        """
        if self.latents_nd is None:
            raise StoreError(
                "expected sentences with latents, found a dataset without latents. Check the run's capabilities before "
                "using latents, or run `kedro run --pipelines=embedding,validation`."
            )
        return self.latents_nd

    def some(self, count: int, *, seed: int) -> Sentences:
        """Draw `count` of the sentences, in their order, instead of the first ones, which can be the shortest."""
        chosen = sample_rows(np.arange(len(self)), count, seed=seed)
        return Sentences(
            ids=tuple(self.ids[i] for i in chosen),
            texts=tuple(self.texts[i] for i in chosen),
            sources=tuple(self.sources[i] for i in chosen),
            tokens=tuple(self.tokens[i] for i in chosen),
            latents_nd=None if self.latents_nd is None else self.latents_nd[chosen],
        )


def held_out(dataset: Dataset, *, count: int | None, seed: int, split: str) -> Sentences:
    """Draw `count` sentences of a split (fewer where it has fewer); the same ones for the same seed. None: all.

    Raises:
        StoreError: the split has no examples.
    """
    rows = split_rows(dataset, split)
    return read_sentences(dataset, rows if count is None else sample_rows(rows, count, seed=seed))


def split_rows(dataset: Dataset, split: str) -> Rows:
    """Read `dataset.rows(split)`; StoreError if the split has no examples."""
    rows = dataset.rows(split)
    if not len(rows):
        raise StoreError(
            f"expected examples of split '{split}', found {dataset.index.manifest.meta.get('splits')} in the index. "
            "Add the split to the sources (ingestion.splits, or the split of a source), or choose another one "
            "(sampling.split)."
        )
    return rows


def sample_rows(rows: Rows, count: int, *, seed: int) -> Rows:
    """Draw at most `count` of the rows without replacement, ascending."""
    size = min(count, len(rows))
    return np.sort(np.random.default_rng([seed, 0x4E1D]).choice(rows, size=size, replace=False))


def read_sentences(dataset: Dataset, rows: Rows) -> Sentences:
    """Read the sentences of these store rows."""
    record = dataset.records.table(rows)
    values, offsets = dataset.tokens.lists("input_ids").take(rows)
    tokens = tuple(tuple(int(v) for v in values[a:b]) for a, b in pairwise(offsets.tolist()))
    latents = dataset.require("latents").take(rows) if "latents" in dataset else None
    ids, texts, sources = (tuple(record.column(name).to_pylist()) for name in ("id", "text", "source"))
    return Sentences(ids, texts, sources, tokens, latents)


def rows_of_ids(dataset: Dataset, ids: Sequence[str]) -> Rows:
    """Find the store rows of record ids, in their order.

    Raises:
        StoreError: the index does not contain an id.
    """
    known: dict[str, int] = {}
    wanted = pa.array(sorted(set(ids)), type=pa.string())
    for table in dataset.index.iter_tables(columns=["id", "row"]):
        hit = table.filter(pc.is_in(table.column("id"), value_set=wanted))
        known |= dict(zip(hit.column("id").to_pylist(), hit.column("row").to_pylist(), strict=True))
    if missing := [i for i in ids if i not in known]:
        raise StoreError(
            f"{len(missing)} of {len(ids)} samples have ids that the index does not contain (first: {missing[0]}): "
            "the samples were made from another dataset. Run the sampling pipeline again."
        )
    return np.array([known[i] for i in ids], dtype=np.int64)


def texts_of_split(dataset: Dataset, split: str) -> Iterator[str]:
    """Stream all texts of a split, including quarantined ones."""
    for table in dataset.records.iter_tables(65_536, columns=["text", "split"]):
        yield from table.filter(pc.equal(table.column("split"), split)).column("text").to_pylist()
