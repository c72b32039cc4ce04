"""Pipeline `comparison`: run the members, collect their results, report them."""

import logging
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mm_ldlm.evaluation.config import EvaluationConfig, ReportingConfig
    from mm_ldlm.extras.comparison.config import ComparisonConfig

log = logging.getLogger(__name__)


def run_members(
    plan: dict[str, Any], folder: Path, comparison: "ComparisonConfig", tracking: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run every member with every seed, each in its own process; return how they ended.

    With learning rates, each member's other seeds run only at its best rate, and only the sessions at this rate are
    returned. The sessions write into `folder`, which the catalog has created.
    """
    from mm_ldlm.extras.comparison.plan import Session
    from mm_ldlm.extras.comparison.sessions import run_sessions, with_best_rates

    sessions = [Session(**entry) for entry in plan["sessions"]]
    log.info("%d sessions, in %s", len(sessions), folder)
    run = partial(
        run_sessions,
        jobs=comparison.jobs,
        parent_run=tracking.get("run_id"),
        project=Path(plan["project"]),
        conf_source=plan["conf_source"],
    )
    if comparison.learning_rates:
        sessions = with_best_rates(sessions, run)
    return [asdict(outcome) for outcome in run(sessions)]


def collect_results(
    plan: dict[str, Any],
    outcomes: list[dict[str, Any]],
    comparison: "ComparisonConfig",
    evaluation: "EvaluationConfig",
    seed: int,
) -> "tuple[dict[str, Any], pd.DataFrame]":
    """Collect the results of all finished members with their paired differences, and the table of all members."""
    import pandas as pd

    from mm_ldlm.extras.comparison.plan import Session
    from mm_ldlm.extras.comparison.results import collect
    from mm_ldlm.extras.comparison.sessions import Outcome, log_of

    sessions = [Session(**entry) for entry in plan["sessions"]]
    results = collect(
        [session for session in sessions if str(log_of(session)) in {outcome["log"] for outcome in outcomes}],
        [Outcome(**outcome) for outcome in outcomes],
        config=comparison,
        bootstrap=evaluation.bootstrap.seeded(seed),
        reports=Path(plan["reports"]),
    )
    return results, pd.DataFrame(results["rows"])


def report_members(results: dict[str, Any], reporting: "ReportingConfig") -> "tuple[str, dict[str, go.Figure]]":
    """Render the page of the comparison, and its figures by name."""
    from mm_ldlm.extras.comparison.page import report

    return report(results, title=reporting.title)


def judge_members(outcomes: list[dict[str, Any]], report: str) -> None:
    """Raise WorkerFailed if every member failed. The report is an input so that it is saved first."""
    from mm_ldlm.core import WorkerFailed

    if all(outcome["status"] == "failed" for outcome in outcomes):
        listed = "\n".join(f"{each['member']}, seed {each['seed']}: {each['reason']}" for each in outcomes)
        raise WorkerFailed(f"expected at least one finished member, found {len(outcomes)} that failed:\n{listed}")


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                run_members,
                inputs=["comparison_plan", "comparison_runs", "params:comparison", "tracking_reference"],
                outputs="comparison_outcomes",
                name="run_members",
            ),
            node(
                collect_results,
                inputs=[
                    "comparison_plan", "comparison_outcomes", "params:comparison", "params:evaluation", "params:seed"
                ],
                outputs=["comparison_results", "comparison_table"],
                name="collect_results",
            ),
            node(
                report_members,
                inputs=["comparison_results", "params:reporting"],
                outputs=["comparison_report", "comparison_figures"],
                name="report_members",
            ),
            node(
                judge_members,
                inputs=["comparison_outcomes", "comparison_report"],
                outputs=None,
                name="judge_members",
            ),
        ],
        tags="comparison",
        namespace="comparison",
        prefix_datasets_with_namespace=False,
    )  # fmt: skip
