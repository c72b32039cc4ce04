"""Several runs in one process: each begins anew; what a run writes is logged at its end and sent to its own record."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from mm_ldlm.app.hooks.seconds import PipelineSeconds
from mm_ldlm.app.hooks.tracked import TrackedRun

import mm_ldlm.app.parameters
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.app.tracking import mlflow as tracking
from mm_ldlm.app.tracking.config import TrackingConfig
from mm_ldlm.core.errors import ConfigurationError

RUN: dict[str, Any] = {"run_id": "2026", "env": "test", "pipeline_names": ["reporting"]}
WRITE = node(lambda: 1, None, "report", name="write", tags="reporting")


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectHooks:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"tracking": "mm_ldlm.app.tracking.config:TrackingConfig"})
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    made = ProjectHooks()
    made.after_context_created(SimpleNamespace(project_path=tmp_path))  # type: ignore[arg-type]
    return made


def catalog(root: Path) -> DataCatalog:
    section = {"enabled": False, "uri": "sqlite:///data/mlflow.db", "experiment": "e"}
    files = {name: JSONDataset(filepath=str(root / f"{name}.json")) for name in ("tracking_reference", "timings")}
    report = JSONDataset(filepath=str(root / "report.html"))
    return DataCatalog({"parameters": MemoryDataset({"seed": 0, "tracking": section}), "report": report, **files})


def test_a_run_does_not_log_the_report_of_an_earlier_one_and_frees_its_locks(
    hooks: ProjectHooks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first run was interrupted, in a notebook that lives on."""
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    data = catalog(tmp_path)
    released: list[int] = []
    hooks._locks.release = lambda: released.append(1)  # type: ignore[method-assign]
    for finished in (False, True):
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([WRITE]), catalog=data)
        assert len(released) == 1 + finished, "before anything else"
        if not finished:
            hooks.after_dataset_saved("report", "<html>", WRITE)
    hooks.after_pipeline_run()
    assert not [record for record in caplog.records if record.getMessage().startswith("report: ")]
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([WRITE]), catalog=data)
    hooks.before_node_run(WRITE)
    hooks.after_dataset_saved("report", "<html>", WRITE)
    caplog.clear()
    hooks.after_pipeline_run()
    first, *more = (record.getMessage() for record in caplog.records)
    assert first.startswith("seconds: reporting 0.")
    assert more == [f"report: {tmp_path}/report.html"]
    assert set(data.load("timings")) == {"reporting"}


def test_a_data_folder_that_cannot_be_written_to_is_named_with_its_remedy(hooks: ProjectHooks, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    data = catalog(tmp_path)
    data["tracking_reference"] = JSONDataset(filepath=str(tmp_path / "data" / "tracking.json"))
    with pytest.raises(ConfigurationError, match=r"the data folder cannot be written to \(.*--params data=FOLDER"):
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)


@pytest.mark.parametrize(
    ("name", "file"), [("report", "report.html"), ("comparison_report", "comparison.html"), ("timings", None)]
)
def test_a_report_is_sent_under_its_own_name(
    name: str, file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(tracking, "log_text", lambda uri, run_id, text, *, file: sent.append((uri, run_id, text, file)))
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    run.saved(name, "<html>")
    assert sent == [], "this run is not tracked"
    run.address = ("sqlite:///x.db", "an id")
    run.saved(name, "<html>")
    assert sent == ([] if file is None else [("sqlite:///x.db", "an id", "<html>", file)])


def test_a_run_without_an_address_is_not_tracked_and_closes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    monkeypatch.setattr("mm_ldlm.app.tracking.opening.open_somewhere", lambda *_, **__: None)
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._send", lambda *_: pytest.fail("sent"))
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    section = TrackingConfig(enabled=True, uri="http://h:1", experiment="x")
    run.open(section, {}, RUN, Pipeline([]))
    run.loaded("training_spec", {"name": "run-1"})
    run.saved("metrics", {"perplexity": 1.0})
    run.close("FINISHED")
    assert (run.address, caplog.messages) == (None, [])


@pytest.mark.parametrize("name", ["run-1", ""])
def test_a_folder_with_a_name_is_a_tag_and_a_run_is_closed_once_also_without_a_record(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(tracking, "annotate", lambda uri, run_id, tags: sent.append((uri, run_id, tags)))
    monkeypatch.setattr(tracking, "close_run", lambda uri, run_id, **how: sent.append((uri, run_id, how)))
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    run._name_folder(name)
    assert sent == []
    run.address = ("sqlite:///x.db", "an id")
    run._name_folder(name)
    for _ in range(2):
        run.close("FAILED", reason="why")
    tag = [("sqlite:///x.db", "an id", {"run_folder": name})] if name else []
    assert sent == [*tag, ("sqlite:///x.db", "an id", {"status": "FAILED", "reason": "why"})]


def test_the_plan_of_a_comparison_is_saved_and_the_runs_lie_below_the_project(
    hooks: ProjectHooks, tmp_path: Path
) -> None:
    data = catalog(tmp_path)
    data["comparison_plan"] = MemoryDataset()
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    hooks._begin({"tracking": SimpleNamespace(enabled=False)}, {}, RUN, Pipeline([]), {"sessions": ["one"]})
    assert data.load("comparison_plan") == {"sessions": ["one"]}
    for path, expected in (("data/runs", tmp_path / "data/runs"), ("/elsewhere/runs", Path("/elsewhere/runs"))):
        described: Any = {"runs": SimpleNamespace(_describe=lambda path=path: {"filepath": path})}
        assert hooks._runs(described) == expected


def test_the_parameters_of_a_run_are_sent_without_paths_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("mm_ldlm.app.tracking.opening.open_somewhere", lambda uri, **run: seen.update(run))
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    parameters = {
        "ingestion": {"path": f"{tmp_path}/data/a.csv", "other": "/home/me/b.csv"},
        "encoder": {"api_key": "s3"},
    }
    run.open(TrackingConfig(enabled=True, uri="http://h:1", experiment="x"), parameters, RUN, Pipeline([]))
    found = seen["parameters"]
    assert (found["ingestion.path"], found["ingestion.other"]) == ("data/a.csv", "…/b.csv")
    assert "s3" not in str(found)


def test_a_dataset_is_recorded_once_with_the_examples_of_every_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._send", lambda uri, call: call())
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path)
    run._record = SimpleNamespace(  # type: ignore[assignment]
        uri="u", has_dataset=lambda fingerprint: bool(recorded),
        add_dataset=lambda *given, examples: recorded.append((*given, examples)),
    )  # fmt: skip
    counts = {"train": 7, "validation": 2, "test": 1}
    for place in (tmp_path / "data" / "dataset", tmp_path.parent / "elsewhere"):
        data = SimpleNamespace(
            directory=place, fingerprint="f", fingerprints={"tokens": "t"}, rows=lambda split: range(counts[split])
        )
        recorded.clear()
        for _ in range(2):
            run.loaded("dataset", data)
        inside = place.is_relative_to(tmp_path)
        assert recorded == [("data/dataset" if inside else "elsewhere", "f", {"tokens": "t"}, counts)]
    run.saved("dataset", {"records": "a mapping of stores"})
    assert len(recorded) == 1


def test_seconds_are_kept_to_the_millisecond() -> None:
    made = PipelineSeconds({"training": 1.23456, "embedding": 2.0})
    assert made.finished(without={"embedding"}) == {"training": 1.235}
    assert made.of_this_run() == {}
