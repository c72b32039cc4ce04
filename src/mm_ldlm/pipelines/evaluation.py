"""`evaluation`: a run and its samples → metrics. The model is loaded once, and each suite has a node.

A suite that the run's capabilities do not support returns `{"skipped": reason}`. Every result names the weights, the
parameters and the seed that made it; samples of other weights are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Node, Pipeline, node

from mm_ldlm.evaluation.suites import suites
from mm_ldlm.evaluation.suites.base import Evaluation, Suite, score
from mm_ldlm.pipelines.trained import load_trained

if TYPE_CHECKING:
    from mm_ldlm.data.dataset import Dataset
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


def create_pipeline() -> Pipeline:
    loading = node(
        load_trained,
        inputs=["run", "runs", "dataset", "params:evaluation"],
        outputs="evaluation_model",
        name="load_model",
    )
    return Pipeline(
        [loading, *map(_evaluation, suites().values())],
        tags="evaluation",
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )


def _evaluation(suite: Suite) -> Node:
    inputs = {
        "model": "evaluation_model",
        "dataset": "dataset",
        "evaluation": "params:evaluation",
        "seed": "params:seed",
        **{f"samples_{task}": f"samples_{task}" for task in suite.samples},
        **{name: f"params:{name}" for name in suite.sections},
    }
    outputs = {"metrics": f"metrics_{suite.name}"} | ({"rows": f"{suite.name}_rows"} if suite.row_columns else {})
    return node(evaluation_of(suite), inputs=inputs, outputs=outputs, name=f"evaluate_{suite.name}")
