"""Evaluation of a classifier on a held-out split, alongside logistic regression on the stored latents.

Accuracy, macro F1, the confusion matrix and the calibration have bootstrap intervals.

n examples, K classes, b bins of confidence, r replicates of the bootstrap.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import EvaluationError, Rows, RowsOrNone, config
from mm_ldlm.data.corpus.splits import Split
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.held_out import Rows as StoreRows
from mm_ldlm.data.held_out import read_sentences, sample_rows, split_rows
from mm_ldlm.evaluation.bootstrap import Bootstrap, Statistic, calibration_error, reliability
from mm_ldlm.evaluation.suites.base import Evaluation, Form, Headline, Metrics, Suite

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PREFIXES = {"model": "classification", "logistic_regression": "baseline.logistic_regression"}
"""Classifier → the first part of the keys of its numbers"""
BINS = 15
"""Bins of confidence, of the calibration error and of the reliability diagram"""
STRENGTHS = (0.01, 1.0)
"""Inverse strengths of the regularisation of logistic regression, of which the validation split chooses one"""


@config
class ClassificationEvalConfig:
    """Parameters of the suite.

    Attributes:
        split: the split that is scored.
        examples: number of its examples.
        baseline_rows: number of training examples of logistic regression on the latents; 0 disables it.
    """

    split: Split = "test"
    examples: Rows = 5000
    baseline_rows: RowsOrNone = 50_000


@config
class ClassificationSection:
    """Section `classification` of the parameters."""

    evaluation: ClassificationEvalConfig = ClassificationEvalConfig()


class Classification(Suite):
    """Measure the classes of held-out examples by the model and by logistic regression."""

    name, title, use = "classification", "Classification", "classify"
    sections = ("classification",)
    template = "mm_ldlm.families.classification/report.html.j2"
    usual = False

    def evaluate(self, given: Evaluation) -> tuple[Metrics, None]:
        own: ClassificationEvalConfig = given.sections["classification"].evaluation
        model: Any = given.model.model
        dataset, names, seed = given.dataset, list(model.classes), given.seed
        rows = sample_rows(split_rows(dataset, own.split), own.examples, seed=seed)
        true_n = labels_of(dataset, rows, names)
        how: dict[str, Any] = {"names": names, "bootstrap": given.bootstrap}
        found: Metrics = {"split": own.split, "model": measure(true_n, predict(given.model, dataset, rows), **how)}
        if "latents" in dataset and own.baseline_rows:
            begun = time.perf_counter()
            train = sample_rows(split_rows(dataset, "train"), own.baseline_rows, seed=seed)
            probability_nK, chosen = logistic_regression(dataset, train, rows, names=names, config=own, seed=seed)
            found["logistic_regression"] = {
                **measure(true_n, probability_nK, **how),
                "trained_on": len(train),
                "inverse_regularisation": chosen,
                "seconds": round(time.perf_counter() - begun, 1),
            }
        return found, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        return {
            f"{prefix}.{key}": metrics[name][key]
            for name, prefix in PREFIXES.items()
            if name in metrics
            for key in ("accuracy", "macro_f1", "ece", "nll")
        }

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        baseline: tuple[tuple[str, str, Form]] = (
            ("logistic regression on the latents", "baseline.logistic_regression.accuracy", "fraction"),
        )
        return (
            Headline("classification.accuracy", "Accuracy", "fraction", "of held-out examples", baseline, leading=True),
            Headline("classification.macro_f1", "Macro F1", "cosine", "mean over the classes", leading=True),
        )

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.evaluation.report.figures import reliability_diagram
        from mm_ldlm.families.classification.figures import confusion

        lines = {name.replace("_", " "): metrics[name]["reliability"] for name in PREFIXES if name in metrics}
        return {"plot_confusion": confusion(metrics), "plot_reliability": reliability_diagram(lines)}

    def section(self, page: Any) -> dict[str, Any]:
        return {"label": (page.record.config.get("objective") or {}).get("label")}


def predict(model: Any, dataset: Dataset, rows: StoreRows) -> Floats:
    """Compute the model's probabilities (n, K) of stored examples."""
    from mm_ldlm.families.classification.requests import classify_latents, classify_tokens

    held = read_sentences(dataset, rows)
    if model.model.classifies == "latents":
        return classify_latents(model, held.latents).probabilities
    second = None
    if model.model.classifies == "pairs":
        ids_nL = dataset.field("pair_tokens").batch(rows)
        second = [[int(i) for i in row if i != dataset.tokenizer.pad_id] for row in ids_nL]
    return classify_tokens(model, held.tokens, held.texts, second=second).probabilities


def labels_of(dataset: Dataset, rows: StoreRows, names: list[str]) -> Ints:
    """Read the classes (n,) of store rows, as numbers of the model's `names`; -1 for others."""
    store = dataset.require("labels")
    place = np.array([names.index(name) if name in names else -1 for name in store.manifest.meta["classes"]], np.int64)
    return place[store.fixed("value").take(rows)[:, 0]]


def logistic_regression(
    dataset: Dataset,
    train: StoreRows,
    rows: StoreRows,
    *,
    names: list[str],
    config: ClassificationEvalConfig,
    seed: int,
) -> tuple[Floats, float]:
    """Fit multinomial logistic regression to standardised latents of the training split.

    Its strength of regularisation is the one of `STRENGTHS` with the highest accuracy on the validation split, or the
    first where that split has no examples.

    Returns:
        The probabilities (n, K) of `rows`, and the chosen inverse strength.
    """
    from sklearn.linear_model import LogisticRegression

    def standardised(of: StoreRows) -> npt.NDArray[np.float32]:
        return dataset.field("latents").batch(of, normaliser=dataset.normaliser("latents"))

    train_md, true_m = standardised(train), labels_of(dataset, train, names)
    validation = sample_rows(dataset.rows("validation"), config.examples, seed=seed)
    strengths = STRENGTHS if len(validation) else STRENGTHS[:1]
    fits = [LogisticRegression(C=each, max_iter=400).fit(train_md, true_m) for each in strengths]
    best = fits[0]
    if len(fits) > 1:
        held_vd, true_v = standardised(validation), labels_of(dataset, validation, names)
        best = max(fits, key=lambda fitted: float(np.mean(fitted.predict(held_vd) == true_v)))
    probability_nK = np.zeros((len(rows), len(names)))
    probability_nK[:, best.classes_] = best.predict_proba(standardised(rows))
    return probability_nK, float(best.C)


# -- measures ----------------------------------------------------------------------------------------------------------


def measure(true_n: Ints, probability_nK: Floats, *, names: Sequence[str], bootstrap: Bootstrap) -> dict[str, Any]:
    """Compare probabilities with the true classes; every number has an interval over the examples.

    Raises:
        EvaluationError: there are no examples, or a class is outside the names.
    """
    count, classes = len(true_n), len(names)
    if not count or true_n.min() < 0 or true_n.max() >= classes:
        raise EvaluationError(
            f"expected examples with classes 0 to {classes - 1}, found {count} examples, classes "
            f"{np.unique(true_n).tolist()[:5]}. Validate the data with this objective again."
        )
    predicted_n, confidence_n = probability_nK.argmax(axis=1), probability_nK.max(axis=1)
    correct_n = (predicted_n == true_n).astype(np.float64)
    nll_n = -np.log(np.maximum(probability_nK[np.arange(count), true_n], 1e-300))
    return {
        "examples": count,
        "classes": list(names),
        "accuracy": bootstrap.proportion(correct_n),
        "macro_f1": bootstrap.of(macro_f1(true_n, predicted_n, classes), count),
        "ece": bootstrap.of(calibration_error(confidence_n, correct_n, BINS), count),
        "nll": bootstrap.mean(nll_n),
        "majority": float(np.bincount(true_n).max() / count),
        "confusion": confusion(true_n, predicted_n, classes, bootstrap),
        "reliability": reliability(confidence_n, correct_n, BINS, bootstrap),
    }


def macro_f1(true_n: Ints, predicted_n: Ints, classes: int) -> Statistic:
    """Return the mean over classes of 2·TP ÷ (2·TP + FP + FN), as a function of counts (r, n) → (r,).

    Classes that are neither true nor predicted in a resample do not count.
    """
    true_nK, predicted_nK = _one_hot(true_n, classes), _one_hot(predicted_n, classes)

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        hits_rK = counts_rn @ (true_nK * predicted_nK)
        total_rK = counts_rn @ (true_nK + predicted_nK)
        f1_rK = 2 * hits_rK / np.maximum(total_rK, 1)
        return f1_rK.sum(axis=1) / np.maximum((total_rK > 0).sum(axis=1), 1)

    return statistic


def confusion(true_n: Ints, predicted_n: Ints, classes: int, bootstrap: Bootstrap) -> dict[str, list[list[float]]]:
    """Count the examples of each true class (row) by predicted class (column), with intervals of the counts."""
    cells_nC = _one_hot(true_n * classes + predicted_n, classes**2)

    def statistic(counts_rn: np.ndarray) -> np.ndarray:
        return (counts_rn @ cells_nC).astype(np.float32)

    ends = [(1 - bootstrap.level) / 2, (1 + bootstrap.level) / 2]
    low_C, high_C = np.quantile(bootstrap.replicates_of(statistic, len(true_n)), ends, axis=0)
    tables = {"counts": cells_nC.sum(axis=0), "low": low_C, "high": high_C}
    return {name: table.reshape(classes, classes).tolist() for name, table in tables.items()}


def _one_hot(number_n: Ints, size: int) -> Floats:
    found = np.zeros((len(number_n), size))
    found[np.arange(len(number_n)), number_n] = 1
    return found
