"""Inversion of held-out latents: headline metrics, the sweep over samplers, baselines, memorisation.

All metrics are computed from a table with one row per sentence (`score_rows`), which is stored. It contains each
sentence's n-gram counts, so that corpus BLEU can be resampled and a later run can be compared sentence by sentence.

An exact match means that all token ids agree, which is equality up to what the tokenizer discards (an uncased
tokenizer discards case). BLEU, chrF, ROUGE-L and F1 use the decoded strings on both sides. The metrics "as written"
compare the output with the sentence as its author wrote it: capitals, spaces and unknown words count.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.core import slug
from mm_ldlm.data.corpus.record import comparison_form
from mm_ldlm.data.held_out import Sentences, read_sentences, sample_rows, split_rows, texts_of_split
from mm_ldlm.data.latents.recognition import cosines_of
from mm_ldlm.evaluation.bootstrap import Bootstrap, Interval, Statistic, mean_of_counts, ratio_of_counts
from mm_ldlm.evaluation.report.inputs import described_sampler, examples
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Suite, of_samples, token_rows, without_truth
from mm_ldlm.evaluation.suites.generation import memorised
from mm_ldlm.training.checkpoints.provenance import MADE_BY

BLEU_COLUMNS = ("bleu_sys", "bleu_ref", *(f"bleu_c{n}" for n in range(1, 5)), *(f"bleu_t{n}" for n in range(1, 5)))
"""A sentence's sufficient statistics: lengths of hypothesis and reference, correct and total n-grams of order 1 to
4."""
AS_WRITTEN = "as_written_"
"""Begins the columns that compare with the sentence as it was written."""
UP_TO_CASE = "up_to_case"
"""Column of exact matches with the sentence as it was written, apart from case and white space"""
OF_SWEEP = ("model_calls", "sentences_per_second", "exact_match", "token_accuracy", "bleu", "cosine", "exact_ratio")
"""Numbers of a point of the sweep in metrics.json"""
LENGTHS = (6, 9, 12, 16)
"""Inclusive upper ends of the buckets of length, in tokens; one open bucket follows"""
FEWEST_HITS = 8
"""Fewest exact matches that others are divided by: a resample without any would divide by zero"""


class Inversion(Suite):
    """Score the sentences that `sampling` reconstructed; compare samplers, baselines and memorisation."""

    name, title, use = "inversion", "From latent to text", "l2t"
    samples = ("l2t",)
    row_columns = ("exact", "matches", "positions", *BLEU_COLUMNS)
    template = "mm_ldlm.evaluation.suites/inversion.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        return super().skip_reason(given) or without_truth(given.samples["l2t"])

    def evaluate(self, given: Evaluation) -> tuple[dict[str, Any], pd.DataFrame]:
        model, config, seed, bootstrap = given.model, given.config.inversion, given.seed, given.bootstrap
        sentences, samples = of_samples(given.samples["l2t"], dataset=given.dataset)
        cosine_n: np.ndarray | None = samples["cosine"].to_numpy(float)
        if samples["cosine"].isna().any():
            cosine_n = reembedding_cosine(model, samples["text"].tolist(), sentences.latents)
        rows = score_rows(
            model.tokenizer, sentences.tokens, token_rows(samples), ids=sentences.ids, cosine=cosine_n,
            written=sentences.texts,
        ).assign(source=sentences.sources)  # fmt: skip
        part = sentences.some(config.sweep_sentences, seed=seed)
        metrics: dict[str, Any] = {
            "sentences": len(rows),
            "metrics": summarise(rows, bootstrap),
            "by_length": by_length(rows, bootstrap),
            "by_source": [
                {"source": source, **scores_of_part(part, bootstrap)} for source, part in rows.groupby("source")
            ],
            "sweep_sentences": len(part),
            "sweep": sweep(part, given),
        }
        if model.no_encoder is not None:
            points = [f"the point '{point.label}'" for point in config.sweep if _searches(point)]
            metrics["left_out"] = [f"{', '.join(['cosines of re-embedded texts', *points])}: {model.no_encoder}"]
        if config.baseline_rows:
            train = sample_rows(split_rows(given.dataset, "train"), config.baseline_rows, seed=seed)
            metrics["baselines"] = baselines(model, sentences, read_sentences(given.dataset, train), bootstrap)
        metrics["memorised"] = memorisation(
            rows["hypothesis"].tolist(), rows["reference"].tolist(), texts_of_split(given.dataset, "train")
        )
        return metrics, rows

    def numbers(self, metrics: dict[str, Any]) -> dict[str, Any]:
        found = {"l2t.sentences": metrics["sentences"]}
        found |= {f"l2t.{name}": value for name, value in metrics["metrics"].items()}
        found["l2t.chrf"] = metrics["metrics"]["chrf"]["value"]
        for name, entry in metrics.get("baselines", {}).items():
            for metric in ("exact_match", "token_set_f1", "bleu", "cosine"):
                found[f"baseline.{name}.{metric}"] = entry["metrics"].get(metric, {}).get("value")
        found |= {f"l2t.memorised.{name}": value for name, value in metrics["memorised"].items()}
        for line in metrics["sweep"]:
            found |= {f"calls.{slug(line['label'])}.{name}": line.get(name) for name in OF_SWEEP}
        return found

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        return (
            Headline("l2t.exact_match", "Exact match", "fraction", "of sentences, token for token", leading=True),
            Headline("l2t.token_accuracy", "Token accuracy", "fraction", "by position; a wrong length is an error"),
            Headline("l2t.token_set_f1", "Token-set F1", "fraction"),
            Headline("l2t.bleu", "BLEU", "points", "sacrebleu, 0 to 100", leading=True),
            Headline(
                "l2t.cosine", "Cosine, re-embedded", "cosine", "reconstructed text, encoded again, to its source",
                leading=True,
            ),
        )  # fmt: skip

    def figures(self, metrics: dict[str, Any]) -> dict[str, Any]:
        from mm_ldlm.evaluation.report import figures

        baselines = {name: entry["metrics"] for name, entry in metrics.get("baselines", {}).items()}
        return {
            "plot_baselines": figures.baselines({"model": metrics["metrics"], **baselines}),
            "plot_calls": figures.calls(metrics["sweep"]),
            "plot_length": figures.by_length(metrics["by_length"]),
        }

    def section(self, page: Any) -> dict[str, Any]:
        metrics = page.suites[self.name]
        how = metrics[MADE_BY]["samples"]["samples_l2t"]["parameters"]
        search = how.get("search") or {"candidates": 1, "rounds": 0}
        searches = search["candidates"] > 1 or search["rounds"] > 0
        return {
            "examples": examples(page.rows[self.name], count=page.reporting.examples, seed=page.parameters["seed"]),
            "sampler": described_sampler(how.get("text")),
            "search": f"candidates {search['candidates']}, rounds {search['rounds']}" if searches else None,
        }

    def statistics(self, tables: Sequence[pd.DataFrame]) -> dict[str, Any]:
        found = {
            "exact_match": lambda rows: mean_of_counts(rows["exact"]),
            "token_accuracy": lambda rows: ratio_of_counts(rows["matches"], rows["positions"]),
            "bleu": bleu_of_counts,
            "cosine": lambda rows: mean_of_counts(rows["cosine"]),
        }
        return {name: found[name] for name in found if name != "cosine" or all("cosine" in rows for rows in tables)}


def reembedding_cosine(model: Any, texts: Sequence[str], latents_nd: np.ndarray) -> np.ndarray | None:
    """Compute the cosine of each output, encoded again, to its source latent: (n,); an empty output scores 0.

    Each distinct text is encoded once. None without an encoder.
    """
    if model.no_encoder is not None:
        return None
    found_n, filled = np.zeros(len(texts)), [i for i, text in enumerate(texts) if text.strip()]
    if filled:
        place = {text: number for number, text in enumerate(dict.fromkeys(texts[i] for i in filled))}
        encoded_md = np.asarray(model.encode([*place], too_long="truncate"))
        found_n[filled] = cosines_of(encoded_md[[place[texts[i]] for i in filled]], latents_nd[filled])
    return found_n


# -- the sweep -------------------------------------------------------------------------------------------------------


def sweep(sentences: Sentences, given: Evaluation) -> list[dict[str, Any]]:
    """Invert the same sentences with every sampler of the sweep.

    Each line holds model calls, seconds, metrics with intervals, and exact match relative to the reference (paired).
    Without an encoder, points with a search are left out; if the reference is one of them, the last point replaces it.
    """
    model, config, bootstrap = given.model, given.config.inversion, given.bootstrap
    points = [point for point in config.sweep if model.no_encoder is None or not _searches(point)]
    if not points:
        return []
    latents_nd, lines, outputs = sentences.latents, [], []
    for point in points:
        started, how = time.perf_counter(), {"sampler": point.sampler, "length": point.length, "search": point.search}
        outputs.append(made := model.invert(latents_nd, **how, seed=given.seed))
        seconds = time.perf_counter() - started
        lines.append(
            {
                "label": point.label,
                "sampler": asdict(point.sampler),
                "model_calls": float(np.mean(made.model_calls)),
                "encoder_calls": float(np.mean(made.encoder_calls)),
                "seconds": seconds,
                "sentences_per_second": len(sentences) / max(seconds, 1e-9),
            }
        )
    # Most points write most sentences alike, so their texts are encoded together.
    texts = [text for made in outputs for text in made.texts]
    cosine_n = reembedding_cosine(model, texts, np.tile(latents_nd, (len(points), 1)))
    cosines = [None] * len(points) if cosine_n is None else np.split(cosine_n, len(points))
    tables = {
        point.label: score_rows(model.tokenizer, sentences.tokens, made.tokens, ids=sentences.ids, cosine=values)
        for point, made, values in zip(points, outputs, cosines, strict=True)
    }
    reference = config.reference if config.reference in tables else points[-1].label
    return [
        {
            **line,
            **summarise(rows, bootstrap),
            "reference": reference,
            "exact_ratio": exact_ratio(rows, tables[reference], bootstrap),
        }
        for line, rows in zip(lines, tables.values(), strict=True)
    ]


def _searches(point: Any) -> bool:
    return point.search is not None and point.search.enabled


def exact_ratio(rows: pd.DataFrame, reference: pd.DataFrame, bootstrap: Bootstrap) -> Interval | None:
    """Compute the ratio of the exact match to the reference's, on paired draws.

    None if the reference has fewer than `FEWEST_HITS` exact matches.
    """
    return bootstrap.ratio(rows["exact"], reference["exact"]) if reference["exact"].sum() >= FEWEST_HITS else None


# -- baselines and memorisation ----------------------------------------------------------------------------------------


def baselines(model: Any, sentences: Sentences, train: Sentences, bootstrap: Bootstrap) -> dict[str, Any]:
    """Score the nearest training sentence and the bag of words in the same way as the model."""
    latents_nd, found = sentences.latents, {}
    nearest = model.neighbours(latents_nd, train.latents, k=1)
    outputs: dict[str, Sequence[Sequence[int]]] = {
        "nearest_training_sentence": [train.tokens[i] for i in nearest.rows[:, 0]],
        "bag_of_words": bag_of_words(latents_nd, train.latents, train.tokens),
    }
    for name, rows in outputs.items():
        cosine_n = reembedding_cosine(model, model.tokenizer.decode_batch([list(row) for row in rows]), latents_nd)
        table = score_rows(model.tokenizer, sentences.tokens, rows, ids=sentences.ids, cosine=cosine_n)
        found[name] = {"training_sentences": len(train), "metrics": summarise(table, bootstrap)}
    return found


def memorisation(outputs: Sequence[str], references: Sequence[str], training_texts: Iterable[str]) -> dict[str, float]:
    """Compute the fraction of outputs, and of wrong outputs, that are training sentences word for word.

    The fraction of the references is reported too: if it is above 0, the split leaks.
    """
    made_n, true_n = np.split(memorised([*outputs, *references], training_texts), 2)
    wrong_n = np.array([comparison_form(a) != comparison_form(b) for a, b in zip(outputs, references, strict=True)])
    return {
        "outputs": float(made_n.mean()),
        "wrong_outputs": float(made_n[wrong_n].mean()) if wrong_n.any() else 0.0,
        "wrong": int(wrong_n.sum()),
        "references": float(true_n.mean()),
    }


# -- a table of scored sentences --------------------------------------------------------------------------------------


def score_rows(
    tokenizer: Any,
    references: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    *,
    ids: Sequence[str],
    cosine: np.ndarray | None = None,
    written: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Score sentences given as token ids, one row for each; both sides are decoded by the tokenizer.

    Args:
        references, outputs: token ids without special tokens; `matches` counts positions where both agree, and
            `positions` is the longer of the two lengths, so that every missing or surplus token is an error.
        ids: record ids, by which two runs are paired.
        cosine: (n,) cosine of the re-embedded output to the source latent; None without an encoder.
        written: the sentences as their authors wrote them, for the metrics as written; None leaves those out.
    """
    pairs = [(list(one), list(two)) for one, two in zip(references, outputs, strict=True)]
    texts, made = (tokenizer.decode_batch(list(side)) for side in zip(*pairs, strict=True))
    columns: dict[str, Any] = {
        "id": list(ids),
        "reference": texts,
        "hypothesis": made,
        "exact": [one == two for one, two in pairs],
        "matches": [sum(a == b for a, b in zip(one, two, strict=False)) for one, two in pairs],
        "positions": [max(len(one), len(two)) for one, two in pairs],
        "length": [len(one) for one, _ in pairs],
        "rouge_l": rouge_l(texts, made),
        **_text_columns(texts, made),
    }
    if written is not None:
        columns[UP_TO_CASE] = [comparison_form(a) == comparison_form(b) for a, b in zip(written, made, strict=True)]
        own = {"exact": [a == b for a, b in zip(written, made, strict=True)], **_text_columns(written, made)}
        columns |= {f"{AS_WRITTEN}{name}": values for name, values in own.items()}
    return pd.DataFrame(columns if cosine is None else {**columns, "cosine": np.asarray(cosine, np.float64)})


def _text_columns(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """Compute set F1 and the counts of BLEU of every pair of texts."""
    pairs = list(zip(references, hypotheses, strict=True))
    stats_NS = np.array([bleu_statistics(*pair) for pair in pairs], dtype=np.int64)
    return {"set_f1": [token_set_f1(*pair) for pair in pairs], **dict(zip(BLEU_COLUMNS, stats_NS.T, strict=True))}


# -- one sentence ----------------------------------------------------------------------------------------------------


def token_set_f1(reference: str, hypothesis: str) -> float:
    """Compute vec2text's token F1 (Morris et al. 2023, arXiv:2310.06816): F1 between the two *sets* of words.

    Words are NLTK's, as in vec2text. Sentences are not split first, because that needs a downloaded model; only full
    stops inside a text can differ. Two empty texts score 1.
    """
    truth, guess = (set(_word_tokenizer().tokenize(text)) for text in (reference, hypothesis))
    return 2 * len(truth & guess) / (len(truth) + len(guess)) if truth or guess else 1.0


@cache
def _word_tokenizer() -> Any:
    from nltk.tokenize import NLTKWordTokenizer

    return NLTKWordTokenizer()


@cache
def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(effective_order=True)  # silences a warning; the counts do not depend on it


def bleu_statistics(reference: str, hypothesis: str) -> list[int]:
    """Count a sentence's n-grams with sacrebleu (13a tokens, mixed case), in the order of `BLEU_COLUMNS`."""
    score = _bleu().sentence_score(hypothesis, [reference])
    return [int(score.sys_len), int(score.ref_len), *map(int, score.counts), *map(int, score.totals)]


def bleu_of_statistics(stats: np.ndarray) -> float:
    """Compute BLEU (0 to 100) of summed statistics (10,) by sacrebleu's formula and default smoothing."""
    sys_len, ref_len, *grams = (int(value) for value in stats)
    score = _bleu().compute_bleu(grams[:4], grams[4:], sys_len=sys_len, ref_len=ref_len, smooth_method="exp")
    return float(score.score)


def rouge_l(references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
    """Compute the ROUGE-L F-measure per pair (rouge-score, no stemming), 0 to 1."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return [scorer.score(r, h)["rougeL"].fmeasure for r, h in zip(references, hypotheses, strict=True)]


def chrf(rows: pd.DataFrame) -> float:
    """Compute corpus chrF2, 0 to 100, with sacrebleu's defaults."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(rows["hypothesis"].tolist(), [rows["reference"].tolist()]).score)


# -- a set -----------------------------------------------------------------------------------------------------------


def bleu_of_counts(rows: pd.DataFrame, *, columns: str = "") -> Statistic:
    """Make corpus BLEU, 0 to 100, as `sacrebleu REF -i HYP` prints it, a function of counts (r, N) → (r,).

    `columns` begins the names of the columns with the n-gram counts.
    """
    stats_NS = rows[[f"{columns}{name}" for name in BLEU_COLUMNS]].to_numpy(np.float64)
    return lambda counts_RN: np.array([bleu_of_statistics(stats) for stats in np.rint(counts_RN @ stats_NS)])


def summarise(rows: pd.DataFrame, bootstrap: Bootstrap) -> dict[str, Interval]:
    """Summarise a table of scored sentences with an interval for every metric; chrF has only a value.

    Fractions, F1, ROUGE-L and cosine are between 0 and 1, BLEU and chrF between 0 and 100. `bleu` is the corpus score,
    `sentence_bleu` the mean of sentence scores, as vec2text reports it.
    """
    chrf_value = chrf(rows)
    sentence_bleu_N = [bleu_of_statistics(stats) for stats in rows[list(BLEU_COLUMNS)].to_numpy()]
    found: dict[str, Interval] = {
        "exact_match": bootstrap.proportion(rows["exact"]),
        "token_accuracy": bootstrap.ratio(rows["matches"], rows["positions"]),
        "token_set_f1": bootstrap.mean(rows["set_f1"]),
        "bleu": bootstrap.of(bleu_of_counts(rows), len(rows)),
        "sentence_bleu": bootstrap.mean(sentence_bleu_N),
        "chrf": {"value": chrf_value, "low": chrf_value, "high": chrf_value, "level": bootstrap.level},
        "rouge_l": bootstrap.mean(rows["rouge_l"]),
    }
    if "cosine" in rows:
        found["cosine"] = bootstrap.mean(rows["cosine"])
    if f"{AS_WRITTEN}exact" in rows:
        found |= {
            "exact_match_up_to_case": bootstrap.proportion(rows[UP_TO_CASE]),
            "exact_match_as_written": bootstrap.proportion(rows[f"{AS_WRITTEN}exact"]),
            "token_set_f1_as_written": bootstrap.mean(rows[f"{AS_WRITTEN}set_f1"]),
            "bleu_as_written": bootstrap.of(bleu_of_counts(rows, columns=AS_WRITTEN), len(rows)),
        }
    return found


def by_length(rows: pd.DataFrame, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Summarise by bucket of reference length in tokens: exact match with its interval, and other metrics.

    Empty buckets are left out.
    """
    lines = []
    ends = (*LENGTHS, int(rows["length"].max()))
    for low, high in zip((1, *(length + 1 for length in LENGTHS)), ends, strict=True):
        part = rows[rows["length"].between(low, high)]
        if len(part):
            tokens = f"{low}–{high}" if low < high else str(high)
            lines.append({"tokens": tokens, **scores_of_part(part, bootstrap)})
    return lines


def scores_of_part(part: pd.DataFrame, bootstrap: Bootstrap) -> dict[str, Any]:
    """Summarise a part of the sentences: exact matches with intervals, and other metrics."""
    means = {name: part[name].mean() for name in ("set_f1", "rouge_l", "cosine") if name in part}
    exact = {name: bootstrap.proportion(part[name]) for name in (UP_TO_CASE, f"{AS_WRITTEN}exact") if name in part}
    return {
        "rows": len(part),
        "exact_match": bootstrap.proportion(part["exact"]),
        **exact,
        "token_accuracy": part["matches"].sum() / part["positions"].sum(),
        "bleu": bleu_of_counts(part)(np.ones((1, len(part))))[0],
        "chrf": chrf(part),
        **means,
    }


# -- baselines -------------------------------------------------------------------------------------------------------


def bag_of_words(
    query_Nd: np.ndarray, train_Md: np.ndarray, tokens: Sequence[Sequence[int]], *, ridge: float = 1e-3
) -> list[list[int]]:
    """Predict the tokens of each query by ridge regression from latents to token presence and length, in float64.

    The output has as many tokens as the regressed length: those with the highest scores, each once, ordered by their
    mean relative position in training. `ridge` is relative to the mean eigenvalue of the latents' covariance.
    """
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import MultiLabelBinarizer

    binary = MultiLabelBinarizer()
    present_MV = binary.fit_transform(tokens)
    token_V = binary.classes_
    length_M = np.array([len(row) for row in tokens])
    flat = np.searchsorted(token_V, np.concatenate([np.asarray(row, np.int64) for row in tokens]))
    relative = np.concatenate([np.arange(length) / max(1, length - 1) for length in length_M])
    place_V = np.bincount(flat, weights=relative) / np.bincount(flat)
    x_Md = np.asarray(train_Md, np.float64)
    strength = ridge * x_Md.var(axis=0).sum() * len(x_Md) / x_Md.shape[1]
    model = Ridge(alpha=strength, solver="cholesky").fit(x_Md, np.column_stack([present_MV, length_M]))
    score_NT = model.predict(np.asarray(query_Nd, np.float64))
    rows = []
    for score_V, size in zip(score_NT[:, :-1], score_NT[:, -1], strict=True):
        length = int(np.clip(np.rint(size), 1, len(token_V)))
        best = np.argpartition(-score_V, length - 1)[:length]
        rows.append(token_V[best[np.argsort(place_V[best], kind="stable")]].tolist())
    return rows
