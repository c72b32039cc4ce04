"""A database of MLflow that was copied or moved: its experiments keep the folder of their artifacts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.app.tracking import mlflow as tracking


@pytest.mark.parametrize(("folder", "warned"), [("here", False), ("elsewhere", True)])
def test_artifacts_beside_another_database_are_a_warning_with_both_folders(
    folder: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = SimpleNamespace(
        experiment_id="7", tags={"mlflow.experimentKind": "own"},
        artifact_location=(tmp_path / folder / "mlartifacts").as_uri(),
    )  # fmt: skip
    run = SimpleNamespace(info=SimpleNamespace(run_id="an id"))
    connected: Any = SimpleNamespace(get_experiment_by_name=lambda _: found, create_run=lambda *_, **__: run)
    monkeypatch.setattr(tracking, "client", lambda _: connected)
    uri = f"sqlite:///{tmp_path}/here/mlflow.db"
    assert tracking.open_run(uri, experiment="e", name="n", parameters={}, tags={}) == "an id"
    warning = (
        f"MLflow stores the artifacts of the experiment 'e' in file://{tmp_path}/elsewhere/mlartifacts, because its "
        f"database was made there, and not in file://{tmp_path}/here/mlartifacts; set tracking.experiment to a new "
        "name to store them beside the database"
    )
    assert caplog.messages == [warning] * warned
