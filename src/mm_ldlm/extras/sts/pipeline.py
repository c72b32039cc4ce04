"""`sts`: score STS sets on a finished run, in a file next to the scores of the evaluation."""

import logging
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.trained import load_trained

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.inference.api import MMLDLM

log = logging.getLogger(__name__)


def score_sts(model: "MMLDLM", dataset: "Dataset", evaluation: Any, seed: int) -> dict[str, Any]:
    """Score every set of `evaluation.sts`, with a line of the log for each."""
    from mm_ldlm.evaluation.suites.base import Evaluation, score
    from mm_ldlm.extras.sts.suite import Sts

    metrics, _ = score(Sts(), Evaluation(model, dataset, {}, evaluation, seed))
    for name, entry in metrics.get("sets", {}).items():
        found = {source: each["spearman"]["value"] for source, each in entry["scores"].items()}
        found["published"] = entry.get("published")
        words = [f"{source} {value:.2f}" for source, value in found.items() if value is not None]
        unknown = f", {entry['unknown']:.0%} of its sentences have unknown words" if entry.get("unknown") else ""
        log.info("%-8s Spearman x 100: %s; %s pairs%s", name, ", ".join(words), f"{entry['pairs']:,}", unknown)
    for reason in [metrics["skipped"]] if "skipped" in metrics else metrics["left_out"]:
        log.warning("left out: %s", reason)
    return metrics


def create_pipeline() -> Pipeline:
    model = node(
        load_trained, inputs=["run", "runs", "dataset", "params:evaluation"], outputs="sts_model", name="load_model"
    )
    scores = node(
        score_sts,
        inputs=["sts_model", "dataset", "params:evaluation", "params:seed"],
        outputs="sts_scores",
        name="score_sts",
    )
    return Pipeline([model, scores], tags="sts", namespace="sts", prefix_datasets_with_namespace=False)
