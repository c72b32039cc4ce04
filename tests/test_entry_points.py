"""The command `python -m mm_ldlm`: which words it hands on, how a run ends, and which failure it explains."""

from __future__ import annotations

import errno
import logging
import os
import runpy
import subprocess
import sys
from importlib import metadata
from typing import Any

import click
import pytest
from kedro.framework import project as kedro_project
from kedro.io import DatasetError

from mm_ldlm import __main__, cli
from mm_ldlm.app import console
from mm_ldlm.core.errors import StoreError


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--version"], "mm-ldlm"),
        (["--env", "test"], "python -m mm_ldlm"),
        (["-e", "test"], "python -m mm_ldlm"),
        (["invert", "a.npy"], "mm-ldlm"),
        (["export-checkpoint", "--help"], "mm-ldlm"),
    ],
)
def test_a_first_word_is_a_command_and_options_alone_are_a_run(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def ends(*, prog_name: str) -> None:
        called.append(prog_name)
        raise SystemExit(0)

    configured: list[str] = []
    monkeypatch.setattr(kedro_project, "configure_project", configured.append)
    monkeypatch.setattr(console.commands, "main", ends)
    monkeypatch.setattr(cli.cli.commands["run"], "main", ends)
    monkeypatch.setattr(sys, "argv", ["mm-ldlm", *words])
    with pytest.raises(SystemExit):
        __main__.main()
    assert called == [command]
    assert configured == (["mm_ldlm"] if command.startswith("python") else [])


def test_the_command_alone_shows_its_help_and_the_package_alone_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mm-ldlm` alone began a training of minutes; `python -m` of a packaged project of Kedro runs it."""
    monkeypatch.setattr(kedro_project, "configure_project", lambda name: None)
    monkeypatch.setattr(cli.cli.commands["run"], "main", lambda *, prog_name: pytest.exit(prog_name))
    monkeypatch.setattr(sys, "argv", ["bin/mm-ldlm"])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: mm-ldlm [OPTIONS] COMMAND")
    monkeypatch.setattr(sys, "argv", ["mm_ldlm/__main__.py"])
    with pytest.raises(pytest.exit.Exception, match="python -m mm_ldlm"):
        __main__.main()


@pytest.mark.parametrize(("words", "expected"), [("mm-ldlm ", "embed"), ("mm-ldlm invert --ch", "--checkpoint")])
def test_a_shell_completes_commands_and_their_options(words: str, expected: str) -> None:
    """Click's request for completions began a run of all pipelines."""
    asked = {"_MM_LDLM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "mm_ldlm"], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert f"plain,{expected}" in done.stdout.splitlines()


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        console.commands.main(["--version"], prog_name="mm-ldlm")
    assert capsys.readouterr().out == f"mm-ldlm {metadata.version('mm-ldlm')}\n"


@pytest.mark.parametrize(
    ("ending", "code", "logged"),
    [
        (SystemExit(143), 143, f"ended by SIGTERM; {cli.CONTINUES}"),
        (KeyboardInterrupt(), 130, f"interrupted; {cli.CONTINUES}"),
        (SystemExit(3), 3, ""),
        (SystemExit(0), 0, ""),
    ],
)
def test_a_run_that_is_ended_says_what_continues_it(
    ending: BaseException, code: int, logged: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ends(**options: Any) -> None:
        raise ending

    monkeypatch.setattr(cli, "check_names", dict)
    monkeypatch.setattr(cli.kedro_run, "callback", ends)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as end:
        cli.run()
    assert end.value.code == code
    assert [record.getMessage() for record in caplog.records] == ([logged] if logged else [])


def test_sigterm_ends_a_run_with_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(cli.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(cli, "check_names", dict)
    monkeypatch.setattr(cli.kedro_run, "callback", lambda **_: handlers[cli.signal.SIGTERM](15, None))
    with pytest.raises(SystemExit) as end:
        cli.run()
    assert end.value.code == 128 + 15


def test_options_pass_unchecked_where_no_project_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kedro_project, "pipelines", {})
    given = {"pipelines": ["nope"], "node_names": ["nope"]}
    assert cli.check_names(given) == given


def test_a_full_disk_is_found_below_the_error_that_it_led_to() -> None:
    def failed(error: Exception, *, cause: Exception | None = None, context: Exception | None = None) -> Exception:
        error.__cause__, error.__context__ = cause, context
        return error

    full = OSError(errno.ENOSPC, "No space left on device", "x.json")
    for error in (
        full,
        failed(DatasetError("not saved"), cause=full),
        failed(ValueError("in a finally"), context=full),
        failed(DatasetError("not saved"), cause=failed(ValueError("in a finally"), context=full)),
    ):
        assert "the disk is full at x.json" in str(cli.unwritable(error))


def test_an_artifact_that_fails_for_another_reason_is_no_missing_one() -> None:
    error = DatasetError("Failed while loading data")
    error.__cause__ = ZeroDivisionError()
    assert cli.unreadable(error, "records") is None
    assert cli.unreadable(ValueError("no error of the catalog"), "records") is None


def test_an_error_on_purpose_of_a_run_names_its_own_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: Any) -> None:
        raise StoreError("a token https://me:secret@host/x. Run `kedro run --pipeline=sampling`.")

    monkeypatch.setattr(cli, "check_names", dict)
    monkeypatch.setattr(cli.kedro_run, "callback", fail)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(click.ClickException) as error:
        cli.run(env="a+b", params={"data": "d", "run": "r"})
    assert error.value.message == (
        "a token https://***@host/x. Run `kedro run --env=a+b --pipeline=sampling --params data=d,run=r`."
    )


def test_the_package_runs_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["mm-ldlm", "inverd"])
    monkeypatch.delitem(sys.modules, "mm_ldlm.__main__")
    with pytest.raises(SystemExit) as end:
        runpy.run_module("mm_ldlm", run_name="__main__")
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: 'inverd' is not a command. Did you mean 'invert'? Choose one of: invert, embed, ")
