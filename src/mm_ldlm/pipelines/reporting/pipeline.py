"""The graph of `reporting`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.reporting import nodes

METRICS = [
    "metrics_inversion",
    "metrics_sts",
    "metrics_likelihood",
    "metrics_latents",
    "metrics_generation",
    "metrics_classification",
    "metrics_images",
]


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.collect_metrics,
                inputs=[*METRICS, "timings", "run", "runs", "params:evaluation"],
                outputs="metrics",
                name="collect_metrics",
            ),
            node(
                nodes.compare_runs,
                inputs=[
                    "run",
                    "runs",
                    "metrics",
                    "inversion_rows",
                    "likelihood_rows",
                    "params:reporting",
                    "params:evaluation",
                    "params:seed",
                    "tracking_reference",
                ],
                outputs="comparison",
                name="compare_runs",
            ),
            node(
                nodes.write_report,
                inputs=[
                    "run",
                    "runs",
                    "metrics",
                    "comparison",
                    *METRICS,
                    "inversion_rows",
                    "samples_unconditional",
                    "ingestion_report",
                    "validation_report",
                    "timings",
                    "parameters",
                    *nodes.DATA_PLOTS,
                ],
                outputs={"report": "report", **{name: name for name in nodes.PLOTS}},
                name="write_report",
            ),
        ],
        tags="reporting",
        namespace="reporting",
        prefix_datasets_with_namespace=False,
    )
