from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project
from kedro.io import DatasetError

from mm_ldlm import cli
from mm_ldlm.errors import SourceError, StoreError


def wrapped() -> Exception:
    """What Kedro makes of an error that was raised inside a dataset."""
    error = DatasetError("Failed while loading data from dataset StoreDataset(...)")
    error.__cause__ = StoreError("this shard is missing")
    return error


def test_purposeful_errors_are_found_below_kedros_wrapping() -> None:
    assert str(cli.purposeful(wrapped())) == "this shard is missing"
    assert cli.purposeful(ValueError("a defect")) is None


@pytest.mark.parametrize("error", [SourceError("no such file: corpus.txt"), wrapped()])
def test_an_error_on_purpose_ends_as_one_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    result = CliRunner().invoke(cli.cli, ["run"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [f"Error: {cli.purposeful(error)}"]


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (FileNotFoundError(2, "no", "run.json"), "'run' (run.json) is not there yet: run the pipeline that writes it "),
        (json.JSONDecodeError("Expecting value", "[", 1), "'run' cannot be read (Expecting value"),
    ],
)
def test_a_plain_artifact_that_is_missing_or_damaged_names_its_pipeline(
    project: Path, cause: Exception, message: str
) -> None:
    bootstrap_project(project)
    error = DatasetError("run: Failed while loading data from dataset JSONDataset(...)")
    error.__cause__ = cause
    found = str(cli.unreadable(error))
    assert found.startswith(message)
    assert "(training)" in found


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    assert isinstance(CliRunner().invoke(cli.cli, ["run"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline=trainnig"], "'trainnig' is no pipeline. Did you mean 'training'? There are: "),
        (["--nodes=run_trainig"], "'run_trainig' is no node of __default__. Did you mean 'run_training'?"),
        (["--tags=trainig"], "'trainig' is no tag of __default__. Did you mean 'training'?"),
        (["--from-inputs=record"], "'record' is no dataset of __default__. Did you mean 'records'?"),
        (["--pipeline=training", "--from-nodes=prepare_records"], "no node of training. There are: plan_training, "),
    ],
)
def test_a_misspelt_pipeline_or_node_is_no_defect(project: Path, arguments: list[str], message: str) -> None:
    bootstrap_project(project)
    result = CliRunner().invoke(cli.cli, ["run", *arguments])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert message in result.output


def test_both_spellings_name_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        cli.kedro_run, "callback", lambda **options: seen.append((options["pipeline"], options["pipelines"]))
    )
    for arguments in (["--pipeline=training"], ["--pipelines=training"]):
        assert CliRunner().invoke(cli.cli, ["run", *arguments]).exit_code == 0
    assert seen == [(None, ["training"])] * 2
    assert isinstance(cli.cli, click.Group)
