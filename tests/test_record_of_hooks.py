"""What reaches the record of a run in MLflow: its folder, its data, its numbers and reports, and its end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.pipeline import Pipeline
from mm_ldlm.app.hooks.tracked import TrackedRun

from mm_ldlm.app.tracking.config import TrackingConfig

RUN: dict[str, Any] = {"run_id": "2026", "env": "test", "pipeline_names": None}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tracked run whose record is a list of the calls to it, and the store takes every call."""
    calls: list[Any] = []
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._send", lambda uri, call: (calls.append(("to", uri)), call()))
    monkeypatch.setattr("mm_ldlm.training.checkpoints.reference.run_folder", lambda runs, data: (runs, data["name"]))
    monkeypatch.setattr("mm_ldlm.app.tracking.mlflow.annotate", lambda *given: calls.append(("annotate", *given)))
    monkeypatch.setattr(
        "mm_ldlm.app.tracking.mlflow.close_run", lambda *given, **how: calls.append(("close", given, how))
    )
    monkeypatch.setattr(
        "mm_ldlm.app.tracking.mlflow.log_text", lambda *given, **how: calls.append(("text", given, how))
    )
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path / "runs")
    run.address = ("u", "r")
    run._record = SimpleNamespace(  # type: ignore[assignment]
        uri="v", has_dataset=lambda fingerprint: False,
        add_metrics=lambda *given, first: calls.append(("metrics", *given, first)),
        add_run=lambda *given, trained: calls.append(("run", *given, trained)),
        describe=lambda: calls.append("describe"),
    )  # fmt: skip
    return SimpleNamespace(run=run, calls=calls, runs=tmp_path / "runs")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_a_run_was_trained_here_if_its_log_was_written(before: bool, writes: bool, recorded: Any) -> None:
    file = recorded.runs / "run-1" / "training_log.jsonl"
    file.parent.mkdir(parents=True)
    if before:
        file.write_text("{}\n")
        os.utime(file, (1, 1))
    recorded.run.loaded("training_spec", {"name": "run-1"})
    assert recorded.calls == [("to", "u"), ("annotate", "u", "r", {"run_folder": "run-1"})]
    recorded.calls.clear()
    if writes:
        file.write_text("{}\n{}\n")
    reference = {"name": "run-1", "step": 3}
    recorded.run.saved("run", reference)
    assert recorded.calls == [("to", "v"), ("run", reference, (recorded.runs, "run-1"), writes)]
    recorded.calls.clear()
    recorded.run.loaded("run", reference)
    assert recorded.calls[-1][-1] is False, "a run that is only loaded was trained before"


def test_a_run_without_a_spec_was_trained_by_the_node_that_saves_it(recorded: Any) -> None:
    recorded.run.loaded("training_spec", "no mapping")
    recorded.run.saved("run", {"name": "run-1"})
    assert recorded.calls == [("to", "v"), ("run", {"name": "run-1"}, (recorded.runs, "run-1"), True)]


def test_numbers_and_reports_are_sent_and_a_run_is_described_before_it_is_closed(recorded: Any) -> None:
    metrics = {"l2t.bleu": 1.0, "other": 2.0, **{f"sts.{name}.spearman": 1.0 for name in "abc"}}
    recorded.run.saved("metrics", metrics)
    recorded.run.saved("report", "<html>")
    recorded.run.saved("comparison_report", "<p>")
    recorded.run.saved("samples", "no record")
    recorded.run.close("FAILED", reason="why")
    recorded.run.close("KILLED")
    assert [call for call in recorded.calls if call[0] != "to"] == [
        ("metrics", metrics, ["l2t.bleu", "sts.a.spearman"]),
        ("text", ("u", "r", "<html>"), {"file": "report.html"}),
        ("text", ("u", "r", "<p>"), {"file": "comparison.html"}),
        "describe", ("close", ("u", "r"), {"status": "FAILED", "reason": "why"}),
    ]  # fmt: skip
    assert [call[1] for call in recorded.calls if call[0] == "to"] == ["v", "u", "u", "u", "u"]
    assert recorded.run.address is None


def test_a_dataset_behind_a_link_is_named_within_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[Any] = []
    (tmp_path / "project" / "data" / "dataset").mkdir(parents=True)
    (tmp_path / "link").symlink_to("project")
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._send", lambda uri, call: call())
    run = TrackedRun(project=tmp_path / "link", runs=lambda: tmp_path)
    known: set[str] = set()
    run._record = SimpleNamespace(  # type: ignore[assignment]
        uri="u", has_dataset=known.__contains__, add_dataset=lambda name, *given, examples: named.append(name)
    )
    folder = tmp_path / "link" / "data" / "dataset"
    data = SimpleNamespace(directory=folder, fingerprint="f", fingerprints={}, rows=lambda name: ())
    run.loaded("dataset", data)
    known.add("f")
    data.rows = lambda name: pytest.fail("a dataset that is recorded is not read again")
    run.loaded("dataset", data)
    assert named == ["data/dataset"]


def test_the_place_of_the_mlflow_run_is_logged_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be another one than the parameters name, and the environment may add a password to it."""
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    monkeypatch.setattr(
        "mm_ldlm.app.tracking.opening.open_somewhere", lambda uri, **run: ("http://me:pw@other", "an id")
    )
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    run.open(TrackingConfig(enabled=True, uri="http://h", experiment="mine"), {}, RUN, Pipeline([]))
    assert caplog.messages == ["MLflow run an id in experiment 'mine' at http://***@other"]
