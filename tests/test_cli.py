"""`kedro run` of the project: options, names of nodes, and every expected failure as one message."""

import errno
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kedro.io import DatasetError
from tests.environments import configured

from mm_ldlm import cli, settings
from mm_ldlm.core import ConfigurationError

RUN = cli.cli.commands["run"]


@pytest.fixture(autouse=True)
def called(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that Kedro's own command received; it does nothing."""
    found: list[dict[str, Any]] = []
    configured()
    monkeypatch.setattr(cli.kedro_run, "callback", lambda **options: found.append(options))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return found


def call(*words: str) -> Any:
    return CliRunner().invoke(RUN, list(words))


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> Any:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    return call("--env=tatoeba", *words)


# --- options ----------------------------------------------------------------------------------------------------------


def test_kedro_receives_typed_parameters_and_full_names(called: list[dict[str, Any]]) -> None:
    words = ("--pipeline=training", "--to-nodes=plan_training", "--params", "training.max_steps=3,x=[a,b]")
    assert call(*words).exit_code == 0
    (options,) = called
    assert options["pipelines"] == ["training"]
    assert options["to_nodes"] == ["training.plan_training"]
    assert options["params"] == {"training": {"max_steps": 3}, "x": ["a", "b"]}
    assert call("--pipelines=training,sampling", "--nodes=training.plan_training").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--pipeline=trainin",), ("--nodes=plan_trainin",), ("--nodes=an_training",), ("--pipelines=sampling,evaluation", "--nodes=load_model"),
        ("--tags=trainin",), ("--from-inputs=record",), ("--to-outputs=metric",), ("--runner=ThredRunner",),
        ("--params=foo",), ("--params=a=[1",), ("--config=missing.yml",),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_one_message_before_anything_runs(
    called: list[dict[str, Any]], words: tuple[str, ...]
) -> None:
    done = call(*words)
    assert done.exit_code in (1, 2), done.output
    assert "Error" in done.output
    assert isinstance(done.exception, SystemExit)
    assert not called


def test_options_come_from_a_file_and_from_the_command_line(called: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    params = {"training": {"max_steps": 5, "epochs": 1}, "sampling.l2t.files": ["a.npy"]}
    file.write_text(yaml.safe_dump({"run": {"env": "test", "pipelines": ["training", "sampling"], "params": params}}))
    given = ("--params", "training.max_steps=7,seed=2", "--params", "training.max_steps=9")
    assert call("--config", str(file), *given).exit_code == 0
    (options,) = called
    assert options["env"] == "test"
    assert options["pipelines"] == ["training", "sampling"]
    assert options["params"] == {
        "training": {"max_steps": 9, "epochs": 1}, "sampling": {"l2t": {"files": ["a.npy"]}}, "seed": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content", ["", "[1]", "run: 3", "run: {}\nother: 1", "run: {evn: x}", "run: [", "\0", "run: {params: x}"]
)
def test_a_file_of_options_in_another_form_is_refused(
    called: list[dict[str, Any]], content: str, tmp_path: Path
) -> None:
    (tmp_path / "run.yml").write_text(content)
    done = call("--config", str(tmp_path / "run.yml"))
    assert done.exit_code == 1
    assert "Error" in done.output
    assert not called


# --- failures ---------------------------------------------------------------------------------------------------------


def wrapped(error: BaseException) -> DatasetError:
    outer = DatasetError("Failed while loading data")
    outer.__cause__ = error
    return outer


def test_an_error_on_purpose_is_one_message_with_commands_for_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "no http://user:word@h. Run `kedro run --pipeline=training` or `kedro run --env=x`."
    done = failing(monkeypatch, wrapped(ConfigurationError(message)))
    assert done.exit_code == 1
    assert "`kedro run --env=tatoeba --pipeline=training` or `kedro run --env=x`" in done.output
    assert "word" not in done.output
    done = failing(monkeypatch, wrapped(ConfigurationError(message)), "--params", "seed=1,data=/my data")
    assert "`kedro run --env=tatoeba --params 'data=\"/my data\"' --pipeline=training` or" in done.output


def test_an_artifact_that_cannot_be_loaded_names_the_pipeline_that_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    project = next(hooks for hooks in settings.HOOKS if isinstance(hooks, cli.ProjectHooks))
    monkeypatch.setattr(project, "loading", "records")
    done = failing(monkeypatch, wrapped(ValueError("a" * 10**6)))
    assert all(
        word in done.output
        for word in ("records", "cannot be read", "again: `kedro run --env=tatoeba --pipeline=ingestion`.")
    ), done.output
    assert len(done.output) < 2000
    assert isinstance(failing(monkeypatch, KeyError("x")).exception, KeyError), "a defect keeps its traceback"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_full_disk_or_a_closed_folder_is_one_message(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    raised, caused = DatasetError("Failed while saving data"), OSError(code, "no", "/data/x")
    raised.__context__ = caused
    for error in (raised, wrapped(caused)):
        done = failing(monkeypatch, error)
        assert (done.exit_code, "/data/x" in done.output) == (1, True)


def test_a_run_that_is_ended_says_what_continues_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert failing(monkeypatch, KeyboardInterrupt()).exit_code == cli.INTERRUPTED
    assert failing(monkeypatch, SystemExit(cli.TERMINATED)).exit_code == cli.TERMINATED
    assert failing(monkeypatch, SystemExit(5)).exit_code == 5
    assert failing(monkeypatch, SystemExit(0)).exit_code == 1  # a component that leaves is no success
    assert [cli.CONTINUES in record.message for record in caplog.records] == [True, True]
