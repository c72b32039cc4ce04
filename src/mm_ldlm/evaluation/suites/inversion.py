"""Evaluation of inversion of held-out latents: headline metrics, the sweep over samplers, baselines, memorisation."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from mm_ldlm.data.sentences import Sentences
from mm_ldlm.evaluation import inversion as inv
from mm_ldlm.evaluation.baselines import BagOfWords, nearest_training_rows
from mm_ldlm.evaluation.bootstrap import Interval, interval, ratio_of_counts, replicates_of
from mm_ldlm.evaluation.config import BootstrapConfig, InversionConfig, SweepPoint
from mm_ldlm.evaluation.overlap import memorised, normal_form
from mm_ldlm.evaluation.samples import token_rows


def score(model: Any, sentences: Sentences, samples: pd.DataFrame) -> pd.DataFrame:
    """Score the texts that `sampling` reconstructed from the latents of `sentences`.

    `samples` has the column text, and optionally tokens and cosine; without an encoder there are no cosines. The texts
    of `sentences` are those of the records, so the table also has the metrics as written.
    """
    cosine_n: np.ndarray | None
    if "cosine" in samples.columns and samples["cosine"].notna().all():
        cosine_n = samples["cosine"].to_numpy(float)
    else:
        cosine_n = reembedding_cosine(model, samples["text"].tolist(), sentences.latents)
    return rows_of_outputs(
        model,
        ids=sentences.ids,
        references=sentences.tokens,
        outputs=token_rows(samples, model.tokenizer),
        cosine=cosine_n,
        written=sentences.texts,
    )


def rows_of_outputs(
    model: Any,
    *,
    ids: Sequence[str],
    references: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    cosine: np.ndarray | None,
    written: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Score outputs given as token ids against references; both sides are decoded by the model's tokenizer."""
    return inv.score_rows(
        model.tokenizer.decode_batch([list(row) for row in references]),
        model.tokenizer.decode_batch([list(row) for row in outputs]),
        reference_ids=references,
        hypothesis_ids=outputs,
        cosine=cosine,
        ids=ids,
        written=written,
    )


def no_encoder(model: Any) -> str | None:
    """Explain why texts cannot be embedded again by the encoder of the model's latents; None if they can."""
    return getattr(model, "no_encoder", None)


def reembedding_cosine(model: Any, texts: Sequence[str], latents_nd: np.ndarray) -> np.ndarray | None:
    """Compute the cosine of each output, encoded again, to its source latent: (n,); an empty output scores 0.

    Each distinct text is encoded once. None without an encoder.
    """
    if no_encoder(model) is not None:
        return None
    filled = [i for i, text in enumerate(texts) if text.strip()]
    found_n = np.zeros(len(texts))
    if filled:
        distinct = {text: row for row, text in enumerate(dict.fromkeys(texts[i] for i in filled))}
        encoded_md = np.asarray(model.encode(list(distinct)), dtype=np.float64)
        vectors = encoded_md[[distinct[texts[i]] for i in filled]]
        targets = np.asarray(latents_nd, dtype=np.float64)[filled]
        norm = np.linalg.norm(vectors, axis=1) * np.linalg.norm(targets, axis=1)
        found_n[filled] = (vectors * targets).sum(axis=1) / norm
    return found_n


def headline(rows: pd.DataFrame, *, config: InversionConfig, bootstrap: BootstrapConfig, seed: int) -> dict[str, Any]:
    """Summarise a table of scored sentences: metrics with intervals, and a table by length."""
    options: dict[str, Any] = {"replicates": bootstrap.replicates, "level": bootstrap.level, "seed": seed}
    found = inv.summarise(rows, **options)
    by_length = inv.by_length(rows, edges=config.length_edges, **options)
    return {
        "sentences": len(rows),
        "metrics": {name: value.as_dict() for name, value in found.items()},
        "by_length": by_length.to_dict(orient="records"),
    }


# -- the sweep -------------------------------------------------------------------------------------------------------


def sweep(
    model: Any, sentences: Sentences, *, config: InversionConfig, bootstrap: BootstrapConfig, seed: int, progress: bool
) -> list[dict[str, Any]]:
    """Invert the same sentences with every sampler of `config.sweep`.

    Each line holds model calls, seconds, metrics with intervals, and exact match relative to the reference (paired).
    Without an encoder, points with a search are left out; if the reference is one of them, the last point replaces it.
    """
    from tqdm import tqdm

    points = [point for point in config.sweep if point not in without_encoder(model, config)]
    if not points:
        return []
    latents_nd = sentences.latents
    inverted = []
    for point in tqdm(points, desc="quality against calls", disable=not progress):
        started = time.perf_counter()
        made = model.invert(latents_nd, sampler=point.sampler, length=point.length, search=point.search, seed=seed)
        inverted.append((point, made, time.perf_counter() - started))
    # Most points write most sentences alike, so their texts are encoded together.
    texts = [text for _, made, _ in inverted for text in made.texts]
    cosines = reembedding_cosine(model, texts, np.tile(latents_nd, (len(points), 1)))
    tables: dict[str, tuple[SweepPoint, pd.DataFrame, dict[str, float]]] = {}
    for number, (point, made, seconds) in enumerate(inverted):
        rows = rows_of_outputs(
            model,
            ids=sentences.ids,
            references=sentences.tokens,
            outputs=made.tokens,
            cosine=None if cosines is None else cosines.reshape(len(points), -1)[number],
        )
        cost = {
            "model_calls": float(np.mean(made.model_calls)),
            "encoder_calls": float(np.mean(made.encoder_calls)),
            "seconds": seconds,
            "sentences_per_second": len(sentences) / max(seconds, 1e-9),
        }
        tables[point.label] = (point, rows, cost)
    reference = config.reference if config.reference is not None and config.reference in tables else points[-1].label
    return [_line(label, *entry, tables[reference][1], reference, bootstrap, seed) for label, entry in tables.items()]


def without_encoder(model: Any, config: InversionConfig) -> list[SweepPoint]:
    """List the points of the sweep that need the encoder, if there is none."""
    if no_encoder(model) is None:
        return []
    return [point for point in config.sweep if point.search is not None and point.search.enabled]


def _line(
    label: str,
    point: SweepPoint,
    rows: pd.DataFrame,
    cost: dict[str, float],
    reference_rows: pd.DataFrame,
    reference: str,
    bootstrap: BootstrapConfig,
    seed: int,
) -> dict[str, Any]:
    found = inv.summarise(rows, replicates=bootstrap.replicates, level=bootstrap.level, seed=seed)
    line: dict[str, Any] = {"label": label, "sampler": asdict(point.sampler), **cost}
    line |= {name: value.as_dict() for name, value in found.items()}
    line["reference"] = reference
    ratio = exact_ratio(rows, reference_rows, bootstrap=bootstrap, seed=seed)
    line["exact_ratio"] = ratio.as_dict() if ratio else None
    return line


def exact_ratio(
    rows: pd.DataFrame, reference: pd.DataFrame, *, bootstrap: BootstrapConfig, seed: int
) -> Interval | None:
    """Compute exact match divided by that of the reference, on paired draws.

    None if the reference has fewer than eight exact matches: a resample without any would divide by zero.
    """
    ours, theirs = rows["exact"].to_numpy(float), reference["exact"].to_numpy(float)
    if theirs.sum() < 8:
        return None
    drawn = replicates_of(ratio_of_counts(ours, theirs), len(rows), replicates=bootstrap.replicates, seed=seed)
    return interval(float(ours.sum() / theirs.sum()), drawn, level=bootstrap.level)


# -- baselines and memorisation ----------------------------------------------------------------------------------------


def baselines(
    model: Any, sentences: Sentences, train: Sentences, *, bootstrap: BootstrapConfig, seed: int
) -> dict[str, Any]:
    """Score the nearest training sentence and the bag of words in the same way as the model."""
    latents_nd, train_md = sentences.latents, train.latents
    nearest = [train.tokens[row] for row in nearest_training_rows(latents_nd, train_md)]
    bag = BagOfWords.fit(train_md, train.tokens).predict(latents_nd)
    found = {}
    for name, outputs in (("nearest_training_sentence", nearest), ("bag_of_words", bag)):
        texts = model.tokenizer.decode_batch([list(row) for row in outputs])
        cosine = reembedding_cosine(model, texts, latents_nd)
        rows = rows_of_outputs(model, ids=sentences.ids, references=sentences.tokens, outputs=outputs, cosine=cosine)
        summary = inv.summarise(rows, replicates=bootstrap.replicates, level=bootstrap.level, seed=seed)
        found[name] = {"training_sentences": len(train), "metrics": {k: v.as_dict() for k, v in summary.items()}}
    return found


def memorisation(outputs: Sequence[str], references: Sequence[str], training_texts: Iterable[str]) -> dict[str, float]:
    """Compute the fraction of outputs, and of wrong outputs, that are training sentences word for word.

    The fraction of the references is reported too: if it is above 0, the split leaks.
    """
    both = memorised([*outputs, *references], training_texts)
    made_n, true_n = both[: len(outputs)], both[len(outputs) :]
    wrong_n = np.array([normal_form(a) != normal_form(b) for a, b in zip(outputs, references, strict=True)])
    return {
        "outputs": float(made_n.mean()),
        "wrong_outputs": float(made_n[wrong_n].mean()) if wrong_n.any() else 0.0,
        "wrong": int(wrong_n.sum()),
        "references": float(true_n.mean()),
    }
