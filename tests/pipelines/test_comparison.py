"""The pipeline `comparison`: refusals before anything runs, and a whole comparison with a member that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pandas as pd
import pytest
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from mm_ldlm.pipelines.comparison import nodes

from mm_ldlm.core.errors import ConfigurationError, WorkerFailed

Run = Callable[..., CompletedProcess[str]]
MEMBERS = [
    {"name": "mdlm", "env": "mdlm"},
    {"name": "ar", "env": "ar"},
    {"name": "diverges", "env": "ar", "params": {"training.optimizer.lr": 1.0e30, "training.guard.max_rollbacks": 0}},
]


def layer(root: Path, name: str, comparison: dict[str, Any]) -> None:
    (root / "conf" / name).mkdir(exist_ok=True)
    (root / "conf" / name / "parameters.yml").write_text(yaml.safe_dump({"comparison": comparison}))


def test_members_are_refused_before_anything_runs(workshop: Path) -> None:
    layer(
        workshop, "refused", {"members": [{"name": "a", "env": "ar"}, {"name": "b", "env": "ar", "params": {"x": 1}}]}
    )
    bootstrap_project(workshop)
    with (
        KedroSession.create(workshop, env="test+refused", runtime_params={"tracking": {"enabled": False}}) as session,
        pytest.raises(ConfigurationError, match=r"member 'b' .*parameter 'x' is not known"),
    ):
        session.run(pipeline_names=["comparison"])
    assert not list(workshop.glob("data/**/comparison_plan.json"))


def test_a_comparison_fails_only_where_all_members_failed() -> None:
    failed, finished = ({"member": "a", "seed": 0, "status": s, "reason": "why"} for s in ("failed", "finished"))
    nodes.judge_members([failed, finished], "")
    with pytest.raises(WorkerFailed, match="found 2 that failed:\na, seed 0: why"):
        nodes.judge_members([failed, failed], "")


@pytest.mark.slow
def test_a_whole_comparison_with_a_member_that_diverges_and_again(finished: Path, run_kedro: Run) -> None:
    layer(finished, "compared", {"members": MEMBERS, "seeds": [0], "budget": {"tokens": 3000}})
    options = ("run", "--pipeline=comparison", "--env=test+compared", "--params=training.launch.processes=1")
    first = run_kedro(*options)
    assert first.returncode == 0, first.stderr
    reports = finished / "data" / "test" / "08_reporting"
    table = pd.read_csv(reports / "comparison_table.csv").set_index("member")
    assert list(table["status"]) == ["finished", "finished", "failed"]
    assert list(table["likelihood"].dropna()) == ["NELBO", "exact"]
    assert (table["tokens"].dropna() >= 3000).all()
    assert table.loc["ar", "difference_low"] < table.loc["ar", "difference"] < table.loc["ar", "difference_high"]
    assert "diverged" in table.loc["diverges", "reason"]
    assert "Failed runs" in (reports / "comparison.html").read_text()

    from mm_ldlm.app.tracking.mlflow import client

    parent = json.loads((finished / "data/test/06_models/tracking_reference.json").read_text())
    tracking = client(parent["tracking_uri"])
    experiment = tracking.get_run(parent["run_id"]).info.experiment_id
    nested = tracking.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent['run_id']}'")
    assert {run.info.run_name: run.info.status for run in nested} == {
        "mdlm, seed 0": "FINISHED", "ar, seed 0": "FINISHED", "diverges, seed 0": "FAILED"
    }  # fmt: skip

    assert run_kedro(*options).returncode == 0
    outcomes = json.loads((reports / "comparison_outcomes.json").read_text())
    assert [outcome["repeated"] for outcome in outcomes] == [True, True, False]
