"""Evaluation of a classifier on a held-out split, beside logistic regression on the stored latents."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.data import Dataset
from mm_ldlm.data.sentences import Rows, latents_of, read_sentences, sample_rows, split_rows
from mm_ldlm.evaluation.config import BootstrapConfig, ClassificationEvalConfig
from mm_ldlm.families.classification.metrics import measure

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def evaluate(
    model: Any, dataset: Dataset, *, config: ClassificationEvalConfig, bootstrap: BootstrapConfig, seed: int
) -> dict[str, Any]:
    """Measure the classifier and the baseline on the same examples.

    Returns:
        The measures of `evaluation.classification.measure` under "model" and, where the dataset has latents,
        "logistic_regression"; {"skipped": reason} for a run that does not classify.
    """
    if (reason := model.capabilities.refusal("classify")) is not None:
        return {"skipped": reason}
    names = list(model.model.classes)
    rows = sample_rows(split_rows(dataset, config.split), config.examples, seed=seed)
    true_n = labels_of(dataset, rows, names)
    options: dict[str, Any] = {
        "names": names, "bins": config.bins, "replicates": bootstrap.replicates, "seed": seed, "level": bootstrap.level
    }  # fmt: skip
    found: dict[str, Any] = {
        "split": config.split,
        "classifies": model.capabilities.classifies,
        "model": measure(true_n, predict(model, dataset, rows), **options),
    }
    if "latents" in dataset and config.baseline_rows:
        train = sample_rows(split_rows(dataset, "train"), config.baseline_rows, seed=seed)
        begun = time.perf_counter()
        probability_nK, chosen = logistic_regression(dataset, train, rows, names=names, config=config, seed=seed)
        found["logistic_regression"] = {
            **measure(true_n, probability_nK, **options),
            "trained_on": len(train),
            "inverse_regularisation": chosen,
            "seconds": round(time.perf_counter() - begun, 1),
        }
    return found


def predict(model: Any, dataset: Dataset, rows: Rows) -> Floats:
    """Compute the model's probabilities (n, K) of stored examples."""
    held = read_sentences(dataset, rows)
    if model.capabilities.classifies == "latents":
        return np.asarray(model.classify_latents(held.latents).probabilities)
    second = None
    if model.capabilities.classifies == "pairs":
        ids_nL = dataset.require("pair_tokens").fixed("value").take(rows)
        second = [[int(i) for i in row if i != dataset.tokenizer.pad_id] for row in ids_nL]
    return np.asarray(model.classify_tokens(held.tokens, held.texts, second=second).probabilities)


def labels_of(dataset: Dataset, rows: Rows, names: list[str]) -> Ints:
    """Read the classes (n,) of store rows, as numbers of the model's `names`."""
    store = dataset.require("labels")
    place = np.array([names.index(name) for name in store.manifest.meta["classes"]], np.int64)
    found: Ints = place[store.fixed("value").take(rows)[:, 0]]
    return found


def logistic_regression(
    dataset: Dataset,
    train: Rows,
    rows: Rows,
    *,
    names: list[str],
    config: ClassificationEvalConfig,
    seed: int,
) -> tuple[Floats, float]:
    """Fit multinomial logistic regression to standardised latents of the training split.

    Its strength of regularisation is the one of `config.baseline_grid` with the highest accuracy on the validation
    split, or the first where that split has no examples.

    Returns:
        The probabilities (n, K) of `rows`, and the chosen inverse strength.
    """
    from sklearn.linear_model import LogisticRegression

    assert dataset.normaliser is not None

    def standardised(of: Rows) -> npt.NDArray[np.float32]:
        assert dataset.normaliser is not None
        return np.asarray(dataset.normaliser.standardise(latents_of(dataset, of)), np.float32)

    train_md, held_nd = standardised(train), standardised(rows)
    true_m = labels_of(dataset, train, names)
    validation = sample_rows(dataset.rows("validation"), config.examples, seed=seed)
    best: tuple[float, float, Any] | None = None
    for strength in config.baseline_grid if len(validation) else config.baseline_grid[:1]:
        fitted = LogisticRegression(C=strength, max_iter=config.baseline_iterations).fit(train_md, true_m)
        score = 0.0
        if len(validation):
            score = float(np.mean(fitted.predict(standardised(validation)) == labels_of(dataset, validation, names)))
        if best is None or score > best[0]:
            best = (score, strength, fitted)
    assert best is not None
    probability_nK = np.zeros((len(rows), len(names)))
    probability_nK[:, best[2].classes_] = best[2].predict_proba(held_nd)
    return probability_nK, best[1]
