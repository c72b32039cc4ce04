"""Evaluation of a classifier on a held-out split, alongside logistic regression on the stored latents."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from mm_ldlm.core import InvalidValue, PositiveFloat, Repeats, Rows, RowsOrNone, bounded, config
from mm_ldlm.data.corpus.splits import Split
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.data.sentences import Rows as StoreRows
from mm_ldlm.data.sentences import read_sentences, sample_rows, split_rows
from mm_ldlm.evaluation.suites.base import Evaluation, Form, Headline, Metrics, Suite
from mm_ldlm.families.classification.metrics import measure

if TYPE_CHECKING:
    import pandas as pd

    from mm_ldlm.evaluation.report.inputs import ReportInputs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@config
class ClassificationEvalConfig:
    """Parameters of the suite.

    Attributes:
        split: the split that is scored.
        examples: number of its examples.
        bins: number of bins of confidence, for the calibration error and the reliability diagram.
        baseline_rows: number of training examples of logistic regression on the latents; 0 disables it.
        baseline_grid: inverse strengths of its regularisation; the validation split chooses one.
        baseline_iterations: maximum number of iterations of each fit, which ends earlier where it converges.
    """

    split: Split = "test"
    examples: Rows = 5000
    bins: Annotated[int, bounded(gt=0, le=1_000)] = 15
    baseline_rows: RowsOrNone = 50_000
    baseline_grid: tuple[PositiveFloat, ...] = (0.01, 1.0)
    baseline_iterations: Repeats = 400

    def __post_init__(self) -> None:
        if not self.baseline_grid:
            raise InvalidValue("expected at least one value in baseline_grid, found none", "baseline_grid")


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

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        own: ClassificationEvalConfig = given.sections["classification"].evaluation
        model: Any = given.model.model
        dataset, names, seed = given.dataset, list(model.classes), given.seed
        rows = sample_rows(split_rows(dataset, own.split), own.examples, seed=seed)
        true_n = labels_of(dataset, rows, names)
        how: dict[str, Any] = {"names": names, "bins": own.bins, "bootstrap": given.bootstrap}
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
        prefixes = {"model": "classification", "logistic_regression": "baseline.logistic_regression"}
        return {
            f"{prefix}.{key}": metrics[name][key]
            for name, prefix in prefixes.items()
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
        from mm_ldlm.families.classification import figures

        return {"plot_confusion": figures.confusion(metrics), "plot_reliability": figures.reliability(metrics)}

    def section(self, page: ReportInputs) -> dict[str, Any]:
        return {"label": (page.record.config.get("objective") or {}).get("label")}


def predict(model: Any, dataset: Dataset, rows: StoreRows) -> Floats:
    """Compute the model's probabilities (n, K) of stored examples."""
    held = read_sentences(dataset, rows)
    if model.model.classifies == "latents":
        return np.asarray(model.classify_latents(held.latents).probabilities)
    second = None
    if model.model.classifies == "pairs":
        ids_nL = dataset.field("pair_tokens").batch(rows)
        second = [[int(i) for i in row if i != dataset.tokenizer.pad_id] for row in ids_nL]
    return np.asarray(model.classify_tokens(held.tokens, held.texts, second=second).probabilities)


def labels_of(dataset: Dataset, rows: StoreRows, names: list[str]) -> Ints:
    """Read the classes (n,) of store rows, as numbers of the model's `names`; -1 for others."""
    store = dataset.require("labels")
    place = np.array([names.index(name) if name in names else -1 for name in store.manifest.meta["classes"]], np.int64)
    found: Ints = place[store.fixed("value").take(rows)[:, 0]]
    return found


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

    Its strength of regularisation is the one of `config.baseline_grid` with the highest accuracy on the validation
    split, or the first where that split has no examples.

    Returns:
        The probabilities (n, K) of `rows`, and the chosen inverse strength.
    """
    from sklearn.linear_model import LogisticRegression

    def standardised(of: StoreRows) -> npt.NDArray[np.float32]:
        return dataset.field("latents").batch(of, normaliser=dataset.normaliser("latents"))

    train_md, true_m = standardised(train), labels_of(dataset, train, names)
    validation = sample_rows(dataset.rows("validation"), config.examples, seed=seed)
    grid = config.baseline_grid if len(validation) else config.baseline_grid[:1]
    fits = [LogisticRegression(C=each, max_iter=config.baseline_iterations).fit(train_md, true_m) for each in grid]
    best = fits[0]
    if len(fits) > 1:
        held_vd, true_v = standardised(validation), labels_of(dataset, validation, names)
        best = max(fits, key=lambda fitted: float(np.mean(fitted.predict(held_vd) == true_v)))
    probability_nK = np.zeros((len(rows), len(names)))
    probability_nK[:, best.classes_] = best.predict_proba(standardised(rows))
    return probability_nK, float(best.C)
