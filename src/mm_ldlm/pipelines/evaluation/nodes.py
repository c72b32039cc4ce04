"""Nodes of `evaluation`: the model is loaded once, and each suite returns its metrics.

A suite that the run's capabilities do not support returns `{"skipped": reason}`. Every result names the weights, the
parameters and the seed that made it; samples of other weights are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mm_ldlm.evaluation.suites.base import Evaluation, Suite, score

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.inference import MMLDLM


def evaluation_of(suite: Suite) -> Callable[..., Any]:
    """Make the node of a suite; besides the arguments below it receives the suite's samples and sections by name."""

    def evaluate(
        model: MMLDLM, dataset: Dataset, evaluation: EvaluationConfig, seed: int, **inputs: Any
    ) -> dict[str, Any]:
        samples = {task: inputs[f"samples_{task}"] for task in suite.samples}
        sections = {name: inputs[name] for name in suite.sections}
        metrics, rows = score(suite, Evaluation(model, dataset, samples, evaluation, seed, sections))
        return {"metrics": metrics, "rows": rows} if suite.row_columns else {"metrics": metrics}

    evaluate.__name__, evaluate.__doc__ = f"evaluate_{suite.name}", type(suite).__doc__
    return evaluate
