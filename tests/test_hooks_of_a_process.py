"""Several runs in one process: each begins anew; what a run writes is logged at its end and sent to its own record."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset

import mm_ldlm.parameters
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.hooks import ProjectHooks
from mm_ldlm.hooks.tracked import TrackedRun
from mm_ldlm.tracking import mlflow as tracking

RUN: dict[str, Any] = {"run_id": "2026", "env": "test", "pipeline_names": ["reporting"]}
WRITE = node(lambda: 1, None, "report", name="write", tags="reporting")


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectHooks:
    monkeypatch.setattr(mm_ldlm.parameters, "SECTIONS", {"tracking": "mm_ldlm.tracking.config:TrackingConfig"})
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
    caplog.set_level("INFO", logger="mm_ldlm.hooks")
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
