from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
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


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    assert isinstance(CliRunner().invoke(cli.cli, ["run"]).exception, ZeroDivisionError)


def test_both_spellings_name_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        cli.kedro_run, "callback", lambda **options: seen.append((options["pipeline"], options["pipelines"]))
    )
    for arguments in (["--pipeline=training"], ["--pipelines=training"]):
        assert CliRunner().invoke(cli.cli, ["run", *arguments]).exit_code == 0
    assert seen == [(None, ["training"])] * 2
    assert isinstance(cli.cli, click.Group)
