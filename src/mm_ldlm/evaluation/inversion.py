"""Metrics of inversion: a table with one row per reconstructed sentence, and summaries of it.

All metrics are computed from this table (`score_rows`), and the table is stored. It contains each sentence's n-gram
counts, so that corpus BLEU can be resampled and a later run can be compared sentence by sentence.

An exact match means that all token ids agree, which is equality up to what the tokenizer discards (an uncased
tokenizer discards case). BLEU, chrF, ROUGE-L and F1 use the decoded strings on both sides. The metrics "as written"
compare the output with the sentence as its author wrote it: capitals, spaces and unknown words count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core.errors import EvaluationError
from mm_ldlm.evaluation.bootstrap import (
    Interval,
    interval,
    mean_interval,
    proportion_interval,
    ratio_interval,
    replicates_of,
)

BLEU_COLUMNS = ("bleu_sys", "bleu_ref", *(f"bleu_c{n}" for n in range(1, 5)), *(f"bleu_t{n}" for n in range(1, 5)))
"""A sentence's sufficient statistics: lengths of hypothesis and reference, correct and total n-grams of order 1 to
4."""
AS_WRITTEN = "as_written_"
"""Begins the columns that compare with the sentence as it was written."""


def score_rows(
    references: Sequence[str],
    hypotheses: Sequence[str],
    *,
    reference_ids: Sequence[Sequence[int]],
    hypothesis_ids: Sequence[Sequence[int]],
    cosine: np.ndarray | None = None,
    ids: Sequence[str] | None = None,
    written: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Score sentences, one row for each: exact match, matches, length, token-set F1, ROUGE-L, BLEU counts, cosine.

    Args:
        reference_ids, hypothesis_ids: token ids without special tokens; `matches` counts positions where both agree,
            and `positions` is the longer of the two lengths, so that every missing or surplus token is an error.
        cosine: (n,) cosine of the re-embedded hypothesis to the source latent; None without an encoder.
        ids: record ids, by which two runs are paired; row numbers if None.
        written: the sentences as their authors wrote them, for the metrics as written; None leaves those out.
    """
    count = len(references)
    lengths = {
        "hypotheses": len(hypotheses),
        "reference_ids": len(reference_ids),
        "hypothesis_ids": len(hypothesis_ids),
    }
    if cosine is not None:
        lengths["cosine"] = len(cosine)
    if written is not None:
        lengths["written"] = len(written)
    if wrong := {name: n for name, n in lengths.items() if n != count}:
        raise EvaluationError(
            f"Inversion: expected {count} entries, one per reference, found {wrong}. "
            "Every source needs exactly one output."
        )
    if count == 0:
        raise EvaluationError("Inversion: expected sentences to score, found none.")
    pairs = [position_matches(a, b) for a, b in zip(reference_ids, hypothesis_ids, strict=True)]
    table = pd.DataFrame(
        {
            "id": list(ids) if ids is not None else [str(i) for i in range(count)],
            "reference": list(references),
            "hypothesis": list(hypotheses),
            "exact": [list(a) == list(b) for a, b in zip(reference_ids, hypothesis_ids, strict=True)],
            "matches": [m for m, _ in pairs],
            "positions": [p for _, p in pairs],
            "length": [len(a) for a in reference_ids],
            "rouge_l": rouge_l(references, hypotheses),
            **_text_columns(references, hypotheses),
        }
    )
    if written is not None:
        own = {
            "exact": [r == h for r, h in zip(written, hypotheses, strict=True)],
            **_text_columns(written, hypotheses),
        }
        table = table.assign(**{f"{AS_WRITTEN}{name}": values for name, values in own.items()})
    if cosine is not None:
        cosine = np.asarray(cosine, dtype=np.float64)
        if not np.isfinite(cosine).all():
            raise EvaluationError(f"Inversion: {(~np.isfinite(cosine)).sum()} re-embedding cosines are not finite.")
        table["cosine"] = cosine
    return table


def _text_columns(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """Set F1 and the counts of BLEU of every pair of texts."""
    pairs = list(zip(references, hypotheses, strict=True))
    stats_NS = np.array([bleu_statistics(*pair) for pair in pairs], dtype=np.int64)
    return {"set_f1": [token_set_f1(*pair) for pair in pairs], **dict(zip(BLEU_COLUMNS, stats_NS.T, strict=True))}


# -- one sentence ----------------------------------------------------------------------------------------------------


def position_matches(reference: Sequence[int], hypothesis: Sequence[int]) -> tuple[int, int]:
    """Count (positions where both have the same token, the longer of the two lengths)."""
    return sum(a == b for a, b in zip(reference, hypothesis, strict=False)), max(len(reference), len(hypothesis))


def token_set_f1(reference: str, hypothesis: str) -> float:
    """Compute vec2text's token F1 (Morris et al. 2023, arXiv:2310.06816): F1 between the two *sets* of words.

    Words are NLTK's, as in vec2text. Sentences are not split first, because that needs a downloaded model; only full
    stops inside a text can differ. Two empty texts score 1.
    """
    truth, guess = set(words(reference)), set(words(hypothesis))
    if not truth and not guess:
        return 1.0
    shared = len(truth & guess)
    return 2 * shared / (len(truth) + len(guess))


def words(text: str) -> list[str]:
    """Split a text into NLTK's words."""
    return _word_tokenizer().tokenize(text)


@lru_cache(maxsize=1)
def _word_tokenizer() -> Any:
    from nltk.tokenize import NLTKWordTokenizer

    return NLTKWordTokenizer()


def bleu_statistics(reference: str, hypothesis: str) -> list[int]:
    """Count a sentence's n-grams with sacrebleu (13a tokens, mixed case), in the order of `BLEU_COLUMNS`."""
    score = _bleu().sentence_score(hypothesis, [reference])
    return [int(score.sys_len), int(score.ref_len), *map(int, score.counts), *map(int, score.totals)]


@lru_cache(maxsize=1)
def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)  # silences a warning; the counts do not depend on it


def bleu_of_statistics(stats: np.ndarray) -> float:
    """Compute BLEU (0 to 100) of summed statistics (10,) by sacrebleu's formula and default smoothing."""
    from sacrebleu.metrics import BLEU

    sys_len, ref_len, *grams = (int(value) for value in stats)
    return float(BLEU.compute_bleu(grams[:4], grams[4:], sys_len=sys_len, ref_len=ref_len, smooth_method="exp").score)


def rouge_l(references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
    """Compute the ROUGE-L F-measure per pair (rouge-score, no stemming), 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return [scorer.score(r, h)["rougeL"].fmeasure for r, h in zip(references, hypotheses, strict=True)]


def chrf(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Compute corpus chrF2, 0 to 100, with sacrebleu's defaults."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(list(hypotheses), [list(references)]).score)


# -- a set -----------------------------------------------------------------------------------------------------------


def corpus_bleu(rows: pd.DataFrame, *, columns: str = "") -> float:
    """Compute corpus BLEU, 0 to 100, as `sacrebleu REF -i HYP` prints it; `columns` begins the names of the counts."""
    return bleu_of_statistics(_bleu_counts(rows, columns).sum(axis=0))


def bleu_of_counts(rows: pd.DataFrame, *, columns: str = "") -> Callable[[np.ndarray], np.ndarray]:
    """Make corpus BLEU a function of bootstrap counts (r, N) → (r,)."""
    stats_NS = _bleu_counts(rows, columns).astype(np.float64)
    return lambda counts_RN: np.array([bleu_of_statistics(stats) for stats in np.rint(counts_RN @ stats_NS)])


def _bleu_counts(rows: pd.DataFrame, columns: str) -> np.ndarray:
    return rows[[f"{columns}{name}" for name in BLEU_COLUMNS]].to_numpy()


def summarise(rows: pd.DataFrame, *, replicates: int = 1000, seed: int = 0, level: float = 0.95) -> dict[str, Interval]:
    """Summarise a table of scored sentences with an interval for every metric; that of chrF is only its value.

    Fractions, F1, ROUGE-L and cosine are between 0 and 1, BLEU and chrF between 0 and 100. `bleu` is the corpus score,
    `sentence_bleu` the mean of sentence scores, as vec2text reports it.
    """
    options: dict[str, Any] = {"replicates": replicates, "seed": seed, "level": level}
    stats_NS = _bleu_counts(rows, "")
    drawn_R = replicates_of(bleu_of_counts(rows), len(rows), replicates=replicates, seed=seed)
    chrf_value = chrf(rows["reference"].tolist(), rows["hypothesis"].tolist())
    found = {
        "exact_match": proportion_interval(rows["exact"].to_numpy(float), **options),
        "token_accuracy": ratio_interval(rows["matches"].to_numpy(), rows["positions"].to_numpy(), **options),
        "token_set_f1": mean_interval(rows["set_f1"].to_numpy(), **options),
        "bleu": interval(corpus_bleu(rows), drawn_R, level=level),
        "sentence_bleu": mean_interval(np.array([bleu_of_statistics(stats) for stats in stats_NS]), **options),
        "chrf": Interval(chrf_value, chrf_value, chrf_value, level),
        "rouge_l": mean_interval(rows["rouge_l"].to_numpy(), **options),
    }
    if "cosine" in rows:
        found["cosine"] = mean_interval(rows["cosine"].to_numpy(), **options)
    if f"{AS_WRITTEN}exact" in rows:
        drawn_R = replicates_of(bleu_of_counts(rows, columns=AS_WRITTEN), len(rows), replicates=replicates, seed=seed)
        found |= {
            "exact_match_as_written": proportion_interval(rows[f"{AS_WRITTEN}exact"].to_numpy(float), **options),
            "token_set_f1_as_written": mean_interval(rows[f"{AS_WRITTEN}set_f1"].to_numpy(), **options),
            "bleu_as_written": interval(corpus_bleu(rows, columns=AS_WRITTEN), drawn_R, level=level),
        }
    return found


def by_length(
    rows: pd.DataFrame, *, edges: Sequence[int], replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """Summarise by bucket of reference length in tokens: exact match with its interval, the other metrics without.

    `edges` are inclusive upper ends; one open bucket follows. Empty buckets are left out.
    """
    upper = [*edges, int(rows["length"].max())]
    lines, low = [], 1
    for high in upper:
        part = rows[(rows["length"] >= low) & (rows["length"] <= high)]
        if len(part):
            exact = proportion_interval(part["exact"].to_numpy(float), replicates=replicates, seed=seed, level=level)
            line = {"tokens": f"{low}–{high}" if low < high else str(high), "rows": len(part)}
            line |= {"exact_match": exact.value, "low": exact.low, "high": exact.high}
            line |= {
                "token_accuracy": part["matches"].sum() / max(1, part["positions"].sum()),
                "token_set_f1": part["set_f1"].mean(),
                "bleu": corpus_bleu(part),
                "chrf": chrf(part["reference"].tolist(), part["hypothesis"].tolist()),
                "rouge_l": part["rouge_l"].mean(),
            }
            if "cosine" in part:
                line["cosine"] = part["cosine"].mean()
            lines.append(line)
        low = max(low, high + 1)
    return pd.DataFrame(lines)
