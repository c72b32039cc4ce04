"""The graph of `reporting`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.reporting import nodes

PARTS = ["metrics_inversion", "metrics_sts", "metrics_likelihood", "metrics_latents"]


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.collect_metrics,
                inputs=[*PARTS, "metrics_generation", "timings"],
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
                    "params:reporting",
                    "params:evaluation",
                    "params:seed",
                    "tracking_reference",
                ],
                outputs="comparison",
                name="compare_runs",
            ),
            node(
                nodes.draw_plots,
                inputs=["run", "runs", *PARTS, "comparison", "params:reporting"],
                outputs={name: name for name in nodes.PLOTS},
                name="draw_plots",
            ),
            node(
                nodes.write_report,
                inputs=[
                    "run",
                    "runs",
                    "metrics",
                    *PARTS,
                    "metrics_generation",
                    "inversion_rows",
                    "samples_unconditional",
                    "ingestion_report",
                    "validation_report",
                    "timings",
                    "comparison",
                    "parameters",
                    *nodes.PLOTS,
                    *nodes.DATA_PLOTS,
                ],
                outputs="report",
                name="write_report",
            ),
        ],
        tags="reporting",
    )
