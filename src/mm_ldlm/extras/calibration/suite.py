"""Calibration of inverted texts: the probabilities that they are right, fitted on validation and tested on held-out
sentences.

The fit inverts sentences of the validation split as the pipeline `sampling` inverted the held-out ones. It is kept in
the run folder, where `MMLDLM` finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mm_ldlm.core import to_dict
from mm_ldlm.data.held_out import held_out
from mm_ldlm.evaluation.bootstrap import Bootstrap, calibration_error, reliability
from mm_ldlm.evaluation.suites.base import Evaluation, Headline, Metrics, Suite, of_samples, without_truth
from mm_ldlm.extras.calibration.fitting import fit_calibration, right_texts
from mm_ldlm.inference.calibration import CALIBRATION
from mm_ldlm.training.checkpoints.provenance import MADE_BY

if TYPE_CHECKING:
    from mm_ldlm.extras.calibration.config import CalibrationConfig

BINS = 10
"""Bins of the calibration error and of the reliability diagram"""
EVENTS = {"exact": "exact as written", "up_to_case": "exact up to case", "content_words": "content words right"}
"""Event (`fitting.right_texts`) → its name in the report"""


class InversionCalibration(Suite):
    """Fit the probabilities that inverted texts are right, and compare them with held-out texts."""

    name, title, use = "calibration", "Probability that an inverted text is right", "l2t"
    samples = ("l2t",)
    template = "mm_ldlm.extras.calibration/report.html.j2"
    usual = False

    def skip_reason(self, given: Evaluation) -> str | None:
        if (reason := super().skip_reason(given) or without_truth(given.samples["l2t"])) is not None:
            return reason
        if not given.config.calibration.sentences:
            return "evaluation.calibration.sentences is 0"
        if not len(given.dataset.rows("validation")):
            return "the dataset has no validation split, on which the probabilities are fitted"
        unembedded = "the samples have no cosines" if given.samples["l2t"]["cosine"].isna().any() else None
        return given.model.no_encoder or unembedded

    def evaluate(self, given: Evaluation) -> tuple[Metrics, pd.DataFrame | None]:
        model, config, table = given.model, given.config.calibration, given.samples["l2t"]
        held = held_out(given.dataset, count=config.sentences, seed=given.seed, split="validation")
        how = table.attrs[MADE_BY]["parameters"]
        made = model.invert(
            held.latents, sampler=how["text"], length=how["length"], search=how["search"], reembed=True,
            samples=how["l2t"]["samples"], seed=given.seed,
        )  # fmt: skip
        cosines, weights = np.asarray(made.cosines), model.parts.weights
        fitted = fit_calibration(held.texts, made.texts, cosines, made.log_probs, weights=weights)
        sentences, samples = of_samples(table, dataset=given.dataset)
        found = fitted.probabilities(samples["cosine"], samples["log_prob"])
        return {
            "sentences": len(samples),
            "fitted": to_dict(fitted),
            "threshold": config.threshold,
            **measure(found, right_texts(sentences.texts, samples["text"].tolist()), config, given.bootstrap),
        }, None

    def numbers(self, metrics: Metrics) -> dict[str, Any]:
        return {
            f"calibration.{event}.{name}": metrics[event][name]
            for event in EVENTS
            for name in ("error", "vouched", "vouched_right")
        }

    def headlines(self, numbers: Mapping[str, float]) -> Sequence[Headline]:
        labels = {"error": "Calibration error, {}", "vouched_right": "High-probability texts, {}"}
        return [
            Headline(f"calibration.{event}.{key}", label.format(name), "fraction", compared=False)
            for key, label in labels.items()
            for event, name in EVENTS.items()
        ]

    def figures(self, metrics: Metrics) -> dict[str, Any]:
        from mm_ldlm.evaluation.report.figures import reliability_diagram

        lines = {name: metrics[event]["reliability"] for event, name in EVENTS.items()}
        return {"plot_inversion_reliability": reliability_diagram(lines)}

    def section(self, page: Any) -> dict[str, Any]:
        return {"events": EVENTS}

    def files(self, metrics: Metrics) -> dict[str, Any]:
        return {CALIBRATION: metrics["fitted"]}


def measure(
    probabilities: Mapping[str, npt.NDArray[Any]], right: Mapping[str, npt.NDArray[np.bool_]],
    config: CalibrationConfig, bootstrap: Bootstrap,
) -> dict[str, Any]:  # fmt: skip
    """Compare the probabilities of each event with what happened.

    Returns:
        For each event the fraction of texts for which it is true, the calibration error, the mean error of a calibrated
        prediction for as many texts (`by_chance`), the fraction of texts whose probability reaches the threshold
        (`vouched`), the fraction of these for which it is true (`vouched_right`, None without any), and the bins.
    """
    found = {}
    for event, confidence_n in probabilities.items():
        right_n = right[event].astype(np.float64)
        draws_rn = np.random.default_rng(bootstrap.seed).random((100, len(right_n))) < confidence_n
        once, kept_n = np.ones((1, len(right_n))), confidence_n >= config.threshold
        chance = [calibration_error(confidence_n, drawn_n, BINS)(once)[0] for drawn_n in draws_rn]
        found[event] = {
            "right": bootstrap.proportion(right_n),
            "error": bootstrap.of(calibration_error(confidence_n, right_n, BINS), len(right_n)),
            "by_chance": float(np.mean(chance)),
            "vouched": bootstrap.proportion(kept_n),
            "vouched_right": bootstrap.proportion(right_n[kept_n]) if kept_n.any() else None,
            "reliability": reliability(confidence_n, right_n, BINS, bootstrap),
        }
    return found
