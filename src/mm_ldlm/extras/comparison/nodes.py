"""Nodes of `comparison`: run the members, collect their results, report them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse

if TYPE_CHECKING:
    import pandas as pd

Parameters = Any  # a section of the parameters, parsed by the hook

log = logging.getLogger(__name__)

PLOTS = ("plot_members_scores", "plot_members_curves", "plot_members_differences")
"""Figures of this pipeline, each a catalog entry."""


def run_members(
    plan: dict[str, Any], folder: Path, comparison: Parameters, tracking: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run every member with every seed, each in a process of its own; return how they ended.

    `folder` is the folder that the plan's sessions write into; it exists then.
    """
    from mm_ldlm.extras.comparison.config import ComparisonConfig
    from mm_ldlm.extras.comparison.sessions import from_plan, run_sessions

    config = parse(ComparisonConfig, comparison, at="comparison")
    sessions = from_plan(plan)
    log.info("%d sessions, in %s", len(sessions), folder)
    outcomes = run_sessions(
        sessions,
        jobs=config.jobs,
        parent_run=tracking.get("run_id"),
        project=Path(plan["project"]),
        conf_source=plan["conf_source"],
    )
    return [outcome.to_dict() for outcome in outcomes]


def collect_results(
    plan: dict[str, Any], outcomes: list[dict[str, Any]], comparison: Parameters, evaluation: Parameters, seed: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The results of all finished members with their paired differences, and the table of all members."""
    from mm_ldlm.extras.comparison.config import ComparisonConfig
    from mm_ldlm.extras.comparison.results import collect, table
    from mm_ldlm.extras.comparison.sessions import Outcome, from_plan

    results = collect(
        from_plan(plan),
        [Outcome(**outcome) for outcome in outcomes],
        config=parse(ComparisonConfig, comparison, at="comparison"),
        bootstrap=evaluation.bootstrap.seeded(seed),
        beside=Path(plan["reports"]),
    )
    return results, table(results)


def report_members(results: dict[str, Any], reporting: Parameters) -> dict[str, Any]:
    """The page of the comparison, and its figures by catalog name."""
    from mm_ldlm.extras.comparison.page import report

    return report(results, title=reporting.title, smoothing=reporting.smoothing)


def judge_members(outcomes: list[dict[str, Any]], report: str) -> None:
    """Raise WorkerFailed where every member failed. It takes the report so that the report is saved by then."""
    from mm_ldlm.core.errors import WorkerFailed

    if all(outcome["status"] == "failed" for outcome in outcomes):
        listed = "\n".join(f"{each['member']}, seed {each['seed']}: {each['reason']}" for each in outcomes)
        raise WorkerFailed(f"expected at least one finished member, found {len(outcomes)} that failed:\n{listed}")
