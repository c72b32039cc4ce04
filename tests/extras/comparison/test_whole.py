"""A whole comparison: members are trained and compared, one of them diverges, and the same command continues."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

MEMBERS = [
    {"name": "mdlm", "env": "mdlm"},
    {"name": "ar", "env": "ar"},
    {"name": "diverges", "env": "ar", "params": {"training.optimizer.lr": 1.0e30, "training.guard.max_rollbacks": 0}},
]


@pytest.mark.slow
def test_a_whole_comparison_with_a_member_that_diverges_and_again(
    finished: Path, run_kedro: Callable[..., Any]
) -> None:
    import mlflow

    (finished / "conf" / "compared").mkdir()
    layer = {"comparison": {"members": MEMBERS, "seeds": [0], "budget": {"tokens": 3000}}}
    (finished / "conf" / "compared" / "parameters.yml").write_text(yaml.safe_dump(layer))
    options = ("run", "--pipeline=comparison", "--env=test+compared", "--params=training.launch.processes=1")
    run_kedro(*options)
    reports = finished / "data/test/08_reporting"
    table = pd.read_csv(reports / "comparison_table.csv").set_index("member")
    assert list(table["status"]) == ["finished", "finished", "failed"]
    assert list(table["likelihood"].dropna()) == ["NELBO", "exact"]
    assert (table["tokens"].dropna() >= 3000).all()
    low, value, high = (float(table[f"difference{end}"]["ar"]) for end in ("_low", "", "_high"))
    assert low < value < high
    assert "diverged" in str(table.loc["diverges", "reason"])
    assert "Failed runs" in (reports / "comparison.html").read_text()

    parent = json.loads((finished / "data/test/06_models/tracking_reference.json").read_text())
    tracking = mlflow.MlflowClient(parent["tracking_uri"])
    experiment = tracking.get_run(parent["run_id"]).info.experiment_id
    nested = tracking.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent['run_id']}'")
    assert {run.info.run_name: run.info.status for run in nested} == {
        "mdlm, seed 0": "FINISHED", "ar, seed 0": "FINISHED", "diverges, seed 0": "FAILED"
    }  # fmt: skip

    run_kedro(*options)
    outcomes = json.loads((reports / "comparison_outcomes.json").read_text())
    assert [outcome["repeated"] for outcome in outcomes] == [True, True, False]
