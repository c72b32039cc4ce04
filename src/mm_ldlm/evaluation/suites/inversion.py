"""Inversion of held-out latents: headline metrics, the sweep over samplers, baselines, memorisation."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.data.sentences import Sentences, read_sentences, sample_rows, split_rows, texts_of_split
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.bootstrap import Bootstrap, Interval, mean_of_counts, ratio_of_counts
from mm_ldlm.evaluation.overlap import memorised, normal_form
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Suite, of_samples, slug, token_rows, without_truth
from mm_ldlm.training.checkpoints.provenance import MADE_BY

OF_SWEEP = ("model_calls", "sentences_per_second", "exact_match", "token_accuracy", "bleu", "cosine", "exact_ratio")
"""Numbers of a point of the sweep in metrics.json"""
FEWEST_HITS = 8
"""Fewest exact matches that others are divided by: a resample without any would divide by zero"""


class Inversion(Suite):
    """Score the sentences that `sampling` reconstructed; compare samplers, baselines and memorisation."""

    name, title, use = "inversion", "From latent to text", "l2t"
    samples = ("l2t",)
    row_columns = ("exact", "matches", "positions", *inv.BLEU_COLUMNS)
    template = "mm_ldlm.evaluation.suites/inversion.html.j2"

    def skip_reason(self, given: Evaluation) -> str | None:
        return super().skip_reason(given) or without_truth(given.samples["l2t"])

    def evaluate(self, given: Evaluation) -> tuple[dict[str, Any], pd.DataFrame]:
        model, config, seed, bootstrap = given.model, given.config.inversion, given.seed, given.bootstrap
        sentences, samples = of_samples(given.samples["l2t"], dataset=given.dataset)
        cosine_n: np.ndarray | None = samples["cosine"].to_numpy(float)
        if samples["cosine"].isna().any():
            cosine_n = reembedding_cosine(model, samples["text"].tolist(), sentences.latents)
        rows = inv.score_rows(
            model.tokenizer, sentences.tokens, token_rows(samples), ids=sentences.ids, cosine=cosine_n,
            written=sentences.texts,
        )  # fmt: skip
        part = sentences.some(config.sweep_sentences, seed=seed)
        metrics: dict[str, Any] = {
            "sentences": len(rows),
            "metrics": inv.summarise(rows, bootstrap),
            "by_length": inv.by_length(rows, bootstrap, edges=config.length_edges),
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
        from mm_ldlm.evaluation.report.page import described_sampler, examples

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
            "bleu": inv.bleu_of_counts,
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
        distinct = list(dict.fromkeys(texts[i] for i in filled))
        encoded = dict(zip(distinct, np.asarray(model.encode(distinct), dtype=np.float64), strict=True))
        vectors, targets = np.stack([encoded[texts[i]] for i in filled]), latents_nd[filled].astype(np.float64)
        norm_n = np.linalg.norm(vectors, axis=1) * np.linalg.norm(targets, axis=1)
        found_n[filled] = (vectors * targets).sum(axis=1) / norm_n
    return found_n


# -- the sweep -------------------------------------------------------------------------------------------------------


def sweep(sentences: Sentences, given: Evaluation) -> list[dict[str, Any]]:
    """Invert the same sentences with every sampler of the sweep.

    Each line holds model calls, seconds, metrics with intervals, and exact match relative to the reference (paired).
    Without an encoder, points with a search are left out; if the reference is one of them, the last point replaces it.
    """
    from tqdm import tqdm

    model, config, bootstrap = given.model, given.config.inversion, given.bootstrap
    points = [point for point in config.sweep if model.no_encoder is None or not _searches(point)]
    if not points:
        return []
    latents_nd, lines, outputs = sentences.latents, [], []
    for point in tqdm(points, desc="quality against calls", disable=not given.config.progress):
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
        point.label: inv.score_rows(model.tokenizer, sentences.tokens, made.tokens, ids=sentences.ids, cosine=values)
        for point, made, values in zip(points, outputs, cosines, strict=True)
    }
    reference = config.reference if config.reference in tables else points[-1].label
    return [
        {
            **line,
            **inv.summarise(rows, bootstrap),
            "reference": reference,
            "exact_ratio": exact_ratio(rows, tables[reference], bootstrap),
        }
        for line, rows in zip(lines, tables.values(), strict=True)
    ]


def _searches(point: Any) -> bool:
    return point.search is not None and point.search.enabled


def exact_ratio(rows: pd.DataFrame, reference: pd.DataFrame, bootstrap: Bootstrap) -> Interval | None:
    """Compute exact match divided by that of the reference, on paired draws.

    None if the reference has fewer than `FEWEST_HITS` exact matches.
    """
    return bootstrap.ratio(rows["exact"], reference["exact"]) if reference["exact"].sum() >= FEWEST_HITS else None


# -- baselines and memorisation ----------------------------------------------------------------------------------------


def baselines(model: Any, sentences: Sentences, train: Sentences, bootstrap: Bootstrap) -> dict[str, Any]:
    """Score the nearest training sentence and the bag of words in the same way as the model."""
    latents_nd, found = sentences.latents, {}
    outputs: dict[str, Sequence[Sequence[int]]] = {
        "nearest_training_sentence": [train.tokens[i] for i in inv.nearest_training_rows(latents_nd, train.latents)],
        "bag_of_words": inv.bag_of_words(latents_nd, train.latents, train.tokens),
    }
    for name, rows in outputs.items():
        cosine_n = reembedding_cosine(model, model.tokenizer.decode_batch([list(row) for row in rows]), latents_nd)
        table = inv.score_rows(model.tokenizer, sentences.tokens, rows, ids=sentences.ids, cosine=cosine_n)
        found[name] = {"training_sentences": len(train), "metrics": inv.summarise(table, bootstrap)}
    return found


def memorisation(outputs: Sequence[str], references: Sequence[str], training_texts: Iterable[str]) -> dict[str, float]:
    """Compute the fraction of outputs, and of wrong outputs, that are training sentences word for word.

    The fraction of the references is reported too: if it is above 0, the split leaks.
    """
    made_n, true_n = np.split(memorised([*outputs, *references], training_texts), 2)
    wrong_n = np.array([normal_form(a) != normal_form(b) for a, b in zip(outputs, references, strict=True)])
    return {
        "outputs": float(made_n.mean()),
        "wrong_outputs": float(made_n[wrong_n].mean()) if wrong_n.any() else 0.0,
        "wrong": int(wrong_n.sum()),
        "references": float(true_n.mean()),
    }
