"""The graph of `reporting`; each registered suite adds its metrics, rows and figures."""

from kedro.pipeline import Pipeline, node

from mm_ldlm.evaluation.suites import suites
from mm_ldlm.pipelines.reporting import nodes


def create_pipeline() -> Pipeline:
    found = suites()
    metrics = _named([f"metrics_{name}" for name in found])
    rows = _named([f"{name}_rows" for name, suite in found.items() if suite.row_columns])
    of_run = _named(["run", "runs"])
    evaluation, reporting = {"evaluation": "params:evaluation"}, {"reporting": "params:reporting"}
    reports = _named(["ingestion_report", "validation_report", *nodes.DATA_PLOTS])
    return Pipeline(
        [
            node(
                nodes.collect_metrics,
                inputs={**of_run, "timings": "timings", **evaluation, **metrics},
                outputs="metrics",
                name="collect_metrics",
            ),
            node(
                nodes.compare_runs,
                inputs={
                    **of_run, "metrics": "metrics", **reporting, **evaluation, "seed": "params:seed",
                    "from_tracking": "tracked_metrics", **rows,
                },
                outputs="comparison",
                name="compare_runs",
            ),
            node(
                nodes.write_report,
                inputs={
                    **of_run, **_named(["metrics", "comparison", "timings", "parameters"]), **reporting, **reports,
                    **metrics, **rows,
                },
                outputs=["report", "figures"],
                name="write_report",
            ),
        ],
        tags="reporting",
        namespace="reporting",
        prefix_datasets_with_namespace=False,
    )  # fmt: skip


def _named(names: list[str]) -> dict[str, str]:
    """Use the names of the catalog as those of the arguments."""
    return {name: name for name in names}
