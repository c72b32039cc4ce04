from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.app.tracking import mlflow as tracking
from mm_ldlm.core.errors import ConfigurationError


def test_relative_databases_count_from_the_project(tmp_path: Path) -> None:
    assert tracking.resolve_uri("sqlite:///data/m.db", root=tmp_path) == f"sqlite:///{tmp_path}/data/m.db"
    assert (tmp_path / "data").is_dir()
    for other in ("sqlite:////elsewhere/m.db", "http://host:5000", "databricks"):
        assert tracking.resolve_uri(other, root=tmp_path) == other


def test_a_run_records_parameters_tags_metrics_and_its_end(uri: str) -> None:
    parameters = {f"training.key_{i}": i for i in range(130)} | {"long": "x" * 9000, "none": None}
    run_id = tracking.open_run(uri, experiment="e", name="n", parameters=parameters, tags={"environment": "test"})
    tracking.log_metrics(uri, run_id, {"l2t.exact_match": 0.5, "broken": math.nan, "text": "no number"})
    tracking.log_text(uri, run_id, "<html>", file="report.html")
    tracking.close_run(uri, run_id, status="FAILED", reason="a reason")

    run = tracking.client(uri).get_run(run_id)
    assert len(run.data.params) == 132
    assert len(run.data.params["long"]) == 6000
    assert run.data.metrics == {"4_evaluation/l2t/exact_match": 0.5}
    assert tracking.read_metrics(uri, run_id) == {"l2t.exact_match": 0.5}
    assert (run.info.status, run.data.tags["reason"], run.data.tags["environment"]) == ("FAILED", "a reason", "test")
    assert [file.path for file in tracking.client(uri).list_artifacts(run_id)] == ["report.html"]
    assert "mlartifacts" in run.info.artifact_uri  # beside the database, not in the folder of the caller


def test_a_second_run_joins_the_experiment(uri: str) -> None:
    first, second = (tracking.open_run(uri, experiment="two", name="n", parameters={}, tags={}) for _ in range(2))
    infos = [tracking.client(uri).get_run(run_id).info for run_id in (first, second)]
    assert infos[0].experiment_id == infos[1].experiment_id


def test_an_experiment_opens_in_the_view_of_model_training_unless_the_user_chose_another(
    uri: str, tmp_path: Path
) -> None:
    connected = tracking.client(uri)
    kinds = {}
    for name, own in (("new", None), ("old", ""), ("other", "genai_development")):
        if own is not None:
            tags = {"mlflow.experimentKind": own} if own else {}
            connected.create_experiment(name, artifact_location=tmp_path.as_uri(), tags=tags)
        tracking.open_run(uri, experiment=name, name="n", parameters={}, tags={})
        experiment = connected.get_experiment_by_name(name)
        assert experiment is not None
        kinds[name] = experiment.tags["mlflow.experimentKind"]
    assert kinds == {
        "new": "custom_model_development", "old": "custom_model_development", "other": "genai_development"
    }  # fmt: skip


def test_lines_of_a_log_get_the_names_of_their_groups(uri: str) -> None:
    run_id = tracking.open_run(uri, experiment="e", name="n", parameters={}, tags={})
    lines: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0, "grad_norm/block0": 1.0},
        {"event": "skip", "reason": "/a/b/c", "step": 1},
    ]
    tracking.log_lines(uri, run_id, lines)
    found = tracking.client(uri).get_run(run_id).data
    assert found.metrics == {"1_headline/loss": 2.0, "5_diagnostics/grad_norm/block0": 1.0}
    assert "…/c" in found.tags["last_event"]
    assert tracking.read_metrics(uri, run_id) == {"loss": 2.0, "grad_norm/block0": 1.0}


def test_metrics_have_the_time_at_which_they_were_logged(uri: str) -> None:
    """MLflow counts milliseconds."""
    run_id = tracking.open_run(uri, experiment="e", name="n", parameters={}, tags={})
    before = time.time()
    tracking.log_lines(uri, run_id, [{"step": 1, "loss": 2.0}])
    tracking.log_metrics(uri, run_id, {"sts": 0.5}, first=["sts"])
    after = time.time()
    client = tracking.client(uri)
    names = client.get_run(run_id).data.metrics
    assert len(names) == 2
    for name in names:
        (found,) = client.get_metric_history(run_id, name)
        assert before - 1 <= found.timestamp / 1000 <= after + 1


def test_an_unreachable_store_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"tracking\.uri"):
        tracking.open_run(f"sqlite:///{tmp_path}/file/m.db", experiment="e", name="n", parameters={}, tags={})


def test_a_run_is_nested_in_its_parent(uri: str) -> None:
    options: dict[str, Any] = {"experiment": "e", "parameters": {}, "tags": {"kept": "x"}}
    parent = tracking.open_run(uri, name="comparison", **options)
    child = tracking.open_run(uri, name="member", parent=parent, **options)
    tags = {run: tracking.client(uri).get_run(run).data.tags for run in (parent, child)}
    assert tags[child]["mlflow.parentRunId"] == parent
    assert tags[child]["kept"] == "x"
    assert "mlflow.parentRunId" not in tags[parent]
