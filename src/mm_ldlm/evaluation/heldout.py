"""The sentences that training has never seen, with their tokens and latents, and the training texts to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mm_ldlm.errors import EvaluationError


@dataclass(frozen=True)
class Sentences:
    """ids, texts and tokens of n sentences with their raw latents (n, d)."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    latents_nd: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def some(self, count: int, *, seed: int) -> Sentences:
        """`count` of them, drawn: a store that is sorted by length has its shortest sentences first."""
        places = sample_rows(np.arange(len(self)), count, seed=seed)
        return Sentences(
            ids=tuple(self.ids[i] for i in places),
            texts=tuple(self.texts[i] for i in places),
            tokens=tuple(self.tokens[i] for i in places),
            latents_nd=self.latents_nd[places],
        )


def split_rows(index: Any, split: str) -> np.ndarray:
    """Store rows of a split in the validated index, streamed: ten million rows cost megabytes."""
    import pyarrow.compute as pc

    parts, seen = [], set()
    for table in index.iter_tables(columns=["row", "split"]):
        label = table.column("split")
        seen |= set(pc.unique(label).to_pylist())
        parts.append(table.column("row").filter(pc.equal(label, split)).to_numpy())
    found = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
    if len(found) == 0:
        raise EvaluationError(
            f"the index holds no rows of split '{split}' (splits: {sorted(seen)}): give the sources some "
            "(ingestion.splits, or a source's split), or take another split (sampling.split)."
        )
    return found


def sample_rows(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """At most `count` of the rows, drawn without replacement, in store order."""
    if len(rows) <= count:
        return np.sort(rows)
    return np.sort(np.random.default_rng([seed, 0x4E1D]).choice(rows, size=count, replace=False))


def read_sentences(rows: np.ndarray, *, records: Any, tokens: Any, latents: Any) -> Sentences:
    """Rows of the three stores, which share their row numbers."""
    record = records.take(rows)
    ids = record.column("id").to_pylist()
    token_ids = tokens.strings("id").take(rows)
    if list(token_ids) != list(ids):
        raise EvaluationError("records and tokens disagree on ids; run `kedro run --pipeline=validation`.")
    values, offsets = tokens.lists("input_ids").take(rows)
    split = [tuple(int(v) for v in values[a:b]) for a, b in pairwise(offsets.tolist())]
    return Sentences(tuple(ids), tuple(record.column("text").to_pylist()), tuple(split), latents_of(latents, rows))


def latents_of(latents: Any, rows: np.ndarray) -> np.ndarray:
    """(n, d) float32 raw latents of store rows."""
    return np.asarray(latents.fixed("latent").take(rows), dtype=np.float32)


def held_out(
    *, records: Any, tokens: Any, latents: Any, index: Any, count: int, seed: int, split: str = "test"
) -> Sentences:
    """`count` held-out sentences (fewer where the split has fewer), the same ones for the same seed."""
    rows = sample_rows(split_rows(index, split), count, seed=seed)
    return read_sentences(rows, records=records, tokens=tokens, latents=latents)


def rows_of_ids(ids: Sequence[str], *, index: Any) -> np.ndarray:
    """Store rows of record ids, in their order.

    Raises:
        EvaluationError: an id that the index does not hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known: dict[str, int] = {}
    wanted = pa.array(sorted(set(ids)), type=pa.string())
    for table in index.iter_tables(columns=["id", "row"]):
        hit = table.filter(pc.is_in(table.column("id"), value_set=wanted))
        known |= dict(zip(hit.column("id").to_pylist(), hit.column("row").to_pylist(), strict=True))
    if missing := [i for i in ids if i not in known]:
        raise EvaluationError(
            f"{len(missing)} of {len(ids)} samples have ids that the index does not hold (first: {missing[0]}): "
            "samples and data are of different runs. Run the sampling pipeline again."
        )
    return np.array([known[i] for i in ids], dtype=np.int64)


def texts_of_split(records: Any, split: str) -> Iterator[str]:
    """All texts of a split, streamed."""
    for table in records.iter_tables(65_536, columns=["text", "split"]):
        for text, label in zip(table.column("text").to_pylist(), table.column("split").to_pylist(), strict=True):
            if label == split:
                yield text


# -- samples ---------------------------------------------------------------------------------------------------------


def without_truth(samples: Any) -> str | None:
    """Why a table of samples has nothing to be held against, or None."""
    if len(samples) == 0 or "id" not in samples.columns or samples["id"].isna().all():
        return "sampling was not asked for held-out sentences (sampling.tasks, sampling.rows)"
    return None


def of_samples(samples: Any, *, records: Any, tokens: Any, latents: Any, index: Any) -> tuple[Sentences, Any]:
    """The held-out sentences that a table of samples was made from, and the table's rows for them, in the same order.

    Rows without an id (samples of a person's own `.npy` files or texts) have no truth to be held against and are left
    out.

    Raises:
        EvaluationError: no rows with an id, the same id twice, or ids of other data.
    """
    if "id" not in samples.columns:
        raise EvaluationError(f"the samples have no column 'id' (columns: {list(samples.columns)}).")
    samples = samples[samples["id"].notna()].reset_index(drop=True)
    if len(samples) == 0:
        raise EvaluationError("none of the samples belongs to a held-out sentence; sampling has to rebuild some.")
    if samples["id"].duplicated().any():
        raise EvaluationError(f"{int(samples['id'].duplicated().sum())} held-out sentences were sampled twice.")
    rows = rows_of_ids(samples["id"].tolist(), index=index)
    return read_sentences(rows, records=records, tokens=tokens, latents=latents), samples


def token_rows(samples: Any, tokenizer: Any) -> list[list[int]]:
    """Token ids of sampled texts: the column `tokens` where the sampler kept it, else what the tokenizer makes of the
    text."""
    if "tokens" in samples.columns:
        return [[int(v) for v in row] for row in samples["tokens"]]
    return [list(row) for row in tokenizer.encode([str(text) for text in samples["text"]])]


def vectors(samples: Any) -> np.ndarray | None:
    """(n, d) float32 of the column `latent`; None where there is none."""
    if "latent" not in samples.columns or len(samples) == 0:
        return None
    return np.stack([np.asarray(row, dtype=np.float32) for row in samples["latent"]])


def required_vectors(samples: Any) -> np.ndarray:
    """`vectors`, where they have to be there."""
    found = vectors(samples)
    if found is None:
        raise EvaluationError(f"the samples hold no latents (columns: {list(samples.columns)}).")
    return found


def no_rows() -> Any:
    """The table of a part that was skipped: no rows, and the columns by which readers know it."""
    import pandas as pd

    return pd.DataFrame({"id": pd.Series(dtype="string"), "reference": pd.Series(dtype="string")})
