"""Tables of the sampling pipeline, joined with the held-out sentences that they were made from."""

from __future__ import annotations

from typing import Any

import numpy as np

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.data import Dataset
from mm_ldlm.data.sentences import Sentences, read_sentences, rows_of_ids


def without_truth(samples: Any) -> str | None:
    """Explain why a table of samples has no held-out sentences to compare with; None if it has some."""
    if len(samples) == 0 or "id" not in samples.columns or samples["id"].isna().all():
        return "sampling was configured without held-out sentences (sampling.tasks, sampling.rows)"
    return None


def of_samples(samples: Any, *, dataset: Dataset) -> tuple[Sentences, Any]:
    """Read the held-out sentences of a table of samples, and select its rows for them, in the same order.

    Rows without an id (samples of a user's own `.npy` files or texts) have no held-out sentence and are left out. Of
    several texts for one latent the best one is read (column `best`).

    Raises:
        EvaluationError: no row has an id, or an id occurs twice.
        StoreError: the ids belong to another dataset.
    """
    if "id" not in samples.columns:
        raise EvaluationError(f"Expected samples with the column 'id', found the columns {list(samples.columns)}.")
    kept = samples["id"].notna() & (samples["best"] if "best" in samples.columns else True)
    samples = samples[kept].reset_index(drop=True)
    if len(samples) == 0:
        raise EvaluationError(
            "Expected samples of held-out sentences, found none with an id. Set sampling.rows and run the sampling "
            "pipeline."
        )
    if samples["id"].duplicated().any():
        raise EvaluationError(
            f"Expected one sample per held-out sentence, found {int(samples['id'].duplicated().sum())} sampled "
            "twice. Run the sampling pipeline again."
        )
    return read_sentences(dataset, rows_of_ids(dataset, samples["id"].tolist())), samples


def token_rows(samples: Any, tokenizer: Any) -> list[list[int]]:
    """Return the token ids of sampled texts: the column `tokens` if present, otherwise the tokenizer's ids."""
    if "tokens" in samples.columns:
        return [[int(v) for v in row] for row in samples["tokens"]]
    return [list(row) for row in tokenizer.encode([str(text) for text in samples["text"]])]


def vectors(samples: Any) -> np.ndarray | None:
    """Return the column `latent` as (n, d) float32; None without that column."""
    if "latent" not in samples.columns or len(samples) == 0 or samples["latent"].isna().any():
        return None
    return np.stack([np.asarray(row, dtype=np.float32) for row in samples["latent"]])


def required_vectors(samples: Any) -> np.ndarray:
    """Return `vectors`; EvaluationError if the samples have none."""
    found = vectors(samples)
    if found is None:
        raise EvaluationError(f"Expected samples with the column 'latent', found the columns {list(samples.columns)}.")
    return found


def no_rows() -> Any:
    """Make the empty table of a skipped suite, with the columns that readers expect."""
    import pandas as pd

    return pd.DataFrame({"id": pd.Series(dtype="string"), "reference": pd.Series(dtype="string")})
