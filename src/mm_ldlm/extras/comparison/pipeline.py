"""The graph of `comparison`."""

from kedro.pipeline import Pipeline, node

from mm_ldlm.extras.comparison import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.run_members,
                inputs=["comparison_plan", "comparison_runs", "params:comparison", "tracking_reference"],
                outputs="comparison_outcomes",
                name="run_members",
            ),
            node(
                nodes.collect_results,
                inputs=[
                    "comparison_plan", "comparison_outcomes", "params:comparison", "params:evaluation", "params:seed"
                ],
                outputs=["comparison_results", "comparison_table"],
                name="collect_results",
            ),
            node(
                nodes.report_members,
                inputs=["comparison_results", "params:reporting"],
                outputs=["comparison_report", "comparison_figures"],
                name="report_members",
            ),
            node(
                nodes.judge_members,
                inputs=["comparison_outcomes", "comparison_report"],
                outputs=None,
                name="judge_members",
            ),
        ],
        tags="comparison",
        namespace="comparison",
        prefix_datasets_with_namespace=False,
    )  # fmt: skip
