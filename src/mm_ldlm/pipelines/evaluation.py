"""`evaluation`: a run and its samples → metrics. The model is loaded once, and each suite has a node.

A suite that the run's capabilities do not support returns `{"skipped": reason}`. Every result names the weights, the
parameters and the seed that made it; samples of other weights are refused, and so are parameters that would replace
scores of the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Node, Pipeline, node

from mm_ldlm.core import EvaluationError
from mm_ldlm.core.files import recorded
from mm_ldlm.evaluation.suites import sections_of_suites, suites
from mm_ldlm.evaluation.suites.base import Evaluation, Suite, parameters_of, score
from mm_ldlm.pipelines.trained import load_trained
from mm_ldlm.training.checkpoints.provenance import MADE_BY

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.evaluation.config import EvaluationConfig
    from mm_ldlm.inference.api import MMLDLM


def load_evaluated(
    run: dict[str, Any],
    runs: Path,
    dataset: Dataset,
    evaluation: EvaluationConfig,
    seed: int,
    scores: Path,
    **sections: Any,
) -> MMLDLM:
    """Load the run's model.

    Args:
        scores: the folder with the metrics of earlier evaluations.

    Raises:
        EvaluationError: scores of this run would be replaced by scores from another seed, other parameters or data.
    """
    given = {**parameters_of(evaluation, sections), "seed": seed, "dataset": dataset.fingerprint}
    of_some = {*suites(), *sections, "device", "batch_tokens"}
    for name, suite in suites().items():
        metrics = recorded(scores / f"metrics_{name}.json") or {}
        then = metrics.get(MADE_BY, {}) | metrics.get(MADE_BY, {}).get("parameters", {})
        read = given.keys() - of_some | {name, *suite.sections}
        changed = [key for key in read & given.keys() & then.keys() if then[key] != given[key]]
        if changed and then["run"] == run["name"] and "skipped" not in metrics:
            raise EvaluationError(
                f"{scores}/metrics_{name}.json: expected the parameters that made these scores of {run['name']}, found "
                f"others ({', '.join(sorted(changed))}), whose scores would replace them. Keep both: `kedro run "
                f"--pipelines=sampling,evaluation,reporting --params run={runs / run['name']}` has a separate "
                f"folder. To replace them, remove {scores}/metrics_*.json first."
            )
    return load_trained(run, runs, dataset, evaluation)


def _evaluation(suite: Suite) -> Node:
    """Make the node of a suite; besides the arguments below it receives the suite's samples and sections by name."""

    def evaluate(
        model: MMLDLM, dataset: Dataset, evaluation: EvaluationConfig, seed: int, **inputs: Any
    ) -> dict[str, Any]:
        samples = {task: inputs[f"samples_{task}"] for task in suite.samples}
        sections = {name: inputs[name] for name in suite.sections}
        metrics, rows = score(suite, Evaluation(model, dataset, samples, evaluation, seed, sections))
        return {"metrics": metrics, "rows": rows} if suite.row_columns else {"metrics": metrics}

    name = evaluate.__name__ = f"evaluate_{suite.name}"
    evaluate.__doc__ = type(suite).__doc__
    inputs = {
        "model": "evaluation_model",
        "dataset": "dataset",
        "evaluation": "params:evaluation",
        "seed": "params:seed",
        **{f"samples_{task}": f"samples_{task}" for task in suite.samples},
        **{name: f"params:{name}" for name in suite.sections},
    }
    outputs = {"metrics": f"metrics_{suite.name}"} | ({"rows": f"{suite.name}_rows"} if suite.row_columns else {})
    return node(evaluate, inputs=inputs, outputs=outputs, name=name)


def create_pipeline() -> Pipeline:
    loading = node(
        load_evaluated,
        inputs={
            **{name: name for name in ("run", "runs", "dataset", "scores")},
            **{name: f"params:{name}" for name in ("evaluation", "seed", *sections_of_suites())},
        },
        outputs="evaluation_model",
        name="load_model",
    )
    return Pipeline(
        [loading, *map(_evaluation, suites().values())],
        tags="evaluation",
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
