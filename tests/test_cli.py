from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project
from kedro.io import DataCatalog, DatasetError, MemoryDataset
from kedro.pipeline import Pipeline, node

from mm_ldlm import cli
from mm_ldlm.app.datasets import FolderDataset
from mm_ldlm.core.errors import ConfigurationError, SourceError, StoreError, purposeful


def wrapped() -> Exception:
    """Wrap an error as Kedro wraps one that was raised inside a dataset."""
    error = DatasetError("Failed while loading data from dataset StoreDataset(...)")
    error.__cause__ = StoreError("this shard is missing")
    return error


def test_purposeful_errors_are_found_below_kedros_wrapping() -> None:
    assert str(purposeful(wrapped())) == "this shard is missing"
    assert purposeful(ValueError("a defect")) is None


@pytest.mark.parametrize("error", [SourceError("no such file: corpus.txt"), wrapped()])
def test_an_error_on_purpose_ends_as_one_message(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    result = CliRunner().invoke(cli.cli, ["run"])
    assert result.exit_code == 1
    assert result.output.splitlines() == [f"Error: {purposeful(error)}"]


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (
            FileNotFoundError(2, "no", "run.json"),
            "'run' (run.json) does not exist yet. Run the pipeline that writes it ",
        ),
        (FileNotFoundError("no file below this folder"), "'run' does not exist yet. Run the pipeline that writes it "),
        (json.JSONDecodeError("Expecting value", "[", 1), "'run' cannot be read (Expecting value"),
        (pa.ArrowInvalid("no magic bytes"), "'run' cannot be read (no magic bytes). Run the pipeline that"),
        (pa.ArrowKeyError("no such type"), "'run' cannot be read ("),
        (IsADirectoryError(21, "Is a directory", "run.json"), "'run' cannot be read ("),
        (EOFError("short"), "'run' cannot be read (short)"),
    ],
)
def test_a_plain_artifact_that_is_missing_or_damaged_names_its_pipeline(
    project: Path, cause: Exception, message: str
) -> None:
    bootstrap_project(project)
    error = DatasetError("Failed while loading data from dataset JSONDataset(...)")
    error.__cause__ = cause
    found = str(cli.unreadable(error, "run"))
    assert found.startswith(message)
    assert found.endswith("first: `kedro run --pipeline=training`.")
    assert cli.unreadable(error, None) is None


@pytest.mark.parametrize("cause", [PermissionError(13, "no"), AttributeError("a defect")])
def test_other_failures_of_loading_are_no_damaged_artifact(cause: Exception) -> None:
    error = DatasetError("Failed while loading data from dataset JSONDataset(...)")
    error.__cause__ = cause
    assert cli.unreadable(error, "run") is None


def test_an_artifact_of_every_run_is_removed_where_it_is_damaged(project: Path) -> None:
    bootstrap_project(project)
    error = DatasetError("Failed while loading data from dataset JSONDataset(...)")
    error.__cause__ = json.JSONDecodeError("Expecting value", "[", 1)
    assert str(cli.unreadable(error, "timings")).endswith("Remove the file: every run writes it.")


@pytest.mark.parametrize("runner", ["Nope", "no.such.Runner", ".", "os.nope"])
def test_a_runner_that_does_not_exist_is_refused(runner: str, project: Path) -> None:
    bootstrap_project(project)
    assert cli.check_names({"runner": "SequentialRunner"})["runner"] == "SequentialRunner"
    with pytest.raises(ConfigurationError, match=r"^--runner: expected SequentialRunner, found '.+'\. Leave"):
        cli.check_names({"runner": runner})


def test_a_folder_that_is_missing_names_its_pipeline(project: Path, tmp_path: Path) -> None:
    bootstrap_project(project)
    catalog = DataCatalog(
        {"tokenizer_files": FolderDataset(filepath=str(tmp_path), holds="mm_ldlm.x:X", marker="vocabulary.json")}
    )
    with pytest.raises(DatasetError) as caught:
        catalog.load("tokenizer_files")
    assert str(cli.unreadable(caught.value, "tokenizer_files")) == (
        f"'tokenizer_files' ({tmp_path / 'vocabulary.json'}) does not exist yet. "
        "Run the pipeline that writes it first: `kedro run --pipeline=ingestion`."
    )


def test_an_artifact_in_memory_names_the_node_that_makes_it(project: Path) -> None:
    bootstrap_project(project)
    with pytest.raises(DatasetError) as caught:
        DataCatalog({"evaluation_model": MemoryDataset()}).load("evaluation_model")
    message = str(cli.unreadable(caught.value, "evaluation_model"))
    assert message.endswith("has to run too. Add it: `--nodes=evaluation.load_model,…`.")


def test_a_missing_artifact_is_advised_about_by_kedro_run(run_kedro: Callable[..., Any], tmp_path: Path) -> None:
    result = run_kedro("run", "--env=test", "--nodes=write_report", f"--params=data={tmp_path},tracking.enabled=false")
    assert result.returncode == 1
    message = (
        r"Error: '\w+' \(.*\) does not exist yet\. Run the pipeline that writes it first: `kedro run --env=test --"
    )
    assert re.search(message, result.stderr)


def test_a_wrong_column_is_one_message_with_the_nearest_name(run_kedro: Callable[..., Any], tmp_path: Path) -> None:
    """Kedro logged the error of the node, and the command printed it again."""
    names = ["id", "review", *(f"a_long_name_of_a_column_{number}" for number in range(9))]
    (tmp_path / "reviews.csv").write_text("\n".join([",".join(names), *[",".join(["x"] * len(names))] * 9]))
    given = f"ingestion.path={tmp_path}/reviews.csv,ingestion.text_column=reviw,data={tmp_path},tracking.enabled=false"
    result = run_kedro("run", "--env=own_csv+test", "--pipeline=ingestion", f"--params={given}")
    assert result.returncode == 1
    (message,) = (line for line in result.stderr.splitlines() if "no column 'reviw'. Did you mean 'review'?" in line)
    assert message.startswith("Error: 9 of 9 rows are damaged")
    assert len(message) < 500 + len(str(tmp_path))
    assert "delimiter" not in message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Run `kedro run --pipeline=validation`.", "Run `kedro run --env=mdlm+test --pipeline=validation`."),
        ("first: `kedro run --a` or `kedro run`.",
         "first: `kedro run --env=mdlm+test --a` or `kedro run --env=mdlm+test`."),
        ("elsewhere (kedro run --params data=/x)", "elsewhere (kedro run --env=mdlm+test --params data=/x)"),
        ("Run `kedro run --pipeline=a --env=other`.", "Run `kedro run --pipeline=a --env=other`."),
        ("the process of this kedro run ended", "the process of this kedro run ended"),
    ],
)  # fmt: skip
def test_suggested_commands_carry_the_environment(message: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise StoreError(message)

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    assert CliRunner().invoke(cli.cli, ["run", "--env=mdlm+test"]).output == f"Error: {expected}\n"
    assert CliRunner().invoke(cli.cli, ["run"]).output == f"Error: {message}\n"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("first: `kedro run --pipeline=sampling`.",
         "first: `kedro run --pipeline=sampling --params data=d/x,run=runs/a`."),
        ("Run `kedro run --pipeline=validation`.", "Run `kedro run --pipeline=validation --params data=d/x`."),
        *((f"`kedro run --pipelines={name}`",
           f"`kedro run --pipelines={name} --params data=d/x{',run=runs/a' if reads else ''}`")
          for name, reads in (("sampling", True), ("evaluation", True), ("reporting", True), ("export", False),
                              ("sampling,evaluation,reporting", True), ("training,sampling", False),
                              ("embedding", False), ("ingestion", False))),
        ("or `kedro run --params 'ingestion.replace=true'`",
         "or `kedro run --params 'data=d/x,ingestion.replace=true'`"),
        ("`kedro run --params data=FOLDER` chooses another", "`kedro run --params data=FOLDER` chooses another"),
        ("set `--params data=FOLDER`", "set `--params data=FOLDER`"),
    ],
)  # fmt: skip
def test_suggested_commands_act_on_the_same_artifacts(message: str, expected: str) -> None:
    options = {"params": {"data": "d/x", "run": "runs/a", "training": {"seed": 1}, "results": None}}
    assert cli.on_the_same_artifacts(message, options) == expected
    assert cli.on_the_same_artifacts(message, {"params": {"data": "with a space"}}) == message


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    assert isinstance(CliRunner().invoke(cli.cli, ["run"]).exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline=trainnig"], "'trainnig' is not a pipeline. Did you mean 'training'? Choose one of: "),
        (["--nodes=run_trainig"], "'run_trainig' is not a node of __default__. Did you mean 'run_training'?"),
        (["--tags=trainig"], "'trainig' is not a tag of __default__. Did you mean 'training'?"),
        (["--from-inputs=record"], "'record' is not a dataset of __default__. Did you mean 'records'?"),
        (["--pipeline=training", "--from-nodes=prepare_records"], "not a node of training. Choose one of: "),
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
    CliRunner().invoke(cli.cli, ["run", "--pipeline=training", "--pipelines=sampling"])
    assert seen[2:] == [("training", ["sampling"])], "Kedro refuses both together"
    assert isinstance(cli.cli, click.Group)


NODES = ("training.plan_training", "training.run_training", "sampling.load_run", "evaluation.load_run", "alone")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("run_training", "training.run_training"),
        ("training.run_training", "training.run_training"),
        ("sampling.load_run", "sampling.load_run"),
        ("alone", "alone"),
    ],
)
def test_a_node_is_named_with_or_without_its_namespace(name: str, full: str) -> None:
    assert cli.full_node_name(name, NODES, within="__default__") == full


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "load_run",
            r"'load_run' names 2 nodes of __default__: sampling\.load_run, evaluation\.load_run\. Write the f",
        ),
        ("run_trainig", r"'run_trainig' is not a node of __default__\. Did you mean 'run_training'\?"),
        ("sampling.run_training", r"is not a node .* Did you mean 'training\.run_training'\?"),
        ("training", r"'training' is not a node"),
    ],
)
def test_a_node_name_that_stands_for_none_or_several_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        cli.full_node_name(name, NODES, within="__default__")


@pytest.mark.parametrize("option", ["--nodes", "--from-nodes", "--to-nodes"])
def test_kedro_receives_the_full_names_of_nodes(project: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    from kedro.framework.project import pipelines

    bootstrap_project(project)
    nodes = [node("".join, "a", "b", name="first", namespace="x"), node("".join, "b", "c", name="second")]
    monkeypatch.setitem(pipelines, "__default__", Pipeline(nodes))
    seen: dict[str, Any] = {}
    monkeypatch.setattr(cli.kedro_run, "callback", lambda **options: seen.update(options))
    result = CliRunner().invoke(cli.cli, ["run", f"{option}=first,second"])
    assert result.exit_code == 0, result.output
    name = {"--nodes": "node_names"}.get(option, option.removeprefix("--").replace("-", "_"))
    assert list(seen[name]) == ["x.first", "second"]


def test_the_help_explains_combined_environments_and_kedros_own_stays(project: Path) -> None:
    text = " ".join(CliRunner().invoke(cli.cli, ["run", "--help"]).output.split())
    assert "--env=tatoeba+mdlm" in text
    assert "A name may omit its pipeline" in text
    assert all("+" not in str(getattr(each, "help", "")) for each in cli.kedro_run.params if each.name == "env")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full at x.json"), (errno.EACCES, "with permission to read and write at x.json")],
)
def test_a_failed_write_anywhere_ends_in_one_sentence(number: int, words: str) -> None:
    error = DatasetError("Failed while saving data to dataset JSONDataset(...)")
    error.__cause__ = OSError(number, "why", "x.json")
    assert words in str(cli.unwritable(error))
    assert cli.unwritable(DatasetError("other")) is None
    assert cli.unwritable(OSError(errno.ENOENT, "none")) is None
