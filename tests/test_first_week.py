"""What a new user meets in the first week: the help of `mm-ldlm`, a wrong folder, layers and files in a wrong form."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline
from mm_ldlm.inference.inputs import read_texts

import mm_ldlm.app.parameters
from mm_ldlm import __main__
from mm_ldlm.app import console
from mm_ldlm.app.config_loader import LayeredConfigLoader, UnreadableConfiguration
from mm_ldlm.app.hooks import ProjectHooks
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, SamplingError, SourceError
from mm_ldlm.data.corpus.config import IngestionConfig
from mm_ldlm.data.corpus.ingestion import ingest


@pytest.mark.parametrize("words", [["--help"], ["--env=test", "--help"]])
def test_the_help_shows_the_commands_and_the_options_of_a_run(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mm-ldlm", *words])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Usage: mm-ldlm [OPTIONS] COMMAND")
    commands, run = shown.split("Usage: python -m mm_ldlm [OPTIONS]\n")
    for name in console.commands.commands:
        assert f"\n  {name} " in commands
    assert "--params TEXT" in run


def test_a_command_outside_a_project_names_the_folder_that_it_expected(tmp_path: Path) -> None:
    with pytest.raises(UnreadableConfiguration) as error:
        LayeredConfigLoader(str(tmp_path / "conf"), base_env="base", default_run_env="local")
    assert error.value.message == (
        f"expected the folder of the configuration at {tmp_path}/conf, found none. Run the command in the folder of "
        "the project, or name the folder with --conf-source."
    )


# -- the order of layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "better"), [
    (("base",), None), (("base", "mdlm"), None), (("base", "test"), None), (("base", "mdlm", "test"), None),
    (("base", "mdlm", "test", "local"), None),
    (("base", "test", "mdlm"), "mdlm+test"),
    (("base", "tatoeba", "test", "mdlm", "local"), "tatoeba+mdlm+test+local"),
    (("base", "test", "local", "mdlm"), "local+mdlm+test"),
])  # fmt: skip
def test_a_refused_environment_in_which_test_is_not_last_names_the_order(
    layers: tuple[str, ...], better: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {})
    hooks = ProjectHooks()
    loader = SimpleNamespace(layers=lambda: layers)
    hooks.after_context_created(cast("Any", SimpleNamespace(project_path=tmp_path, config_loader=loader)))
    refused = DataCatalog({"parameters": MemoryDataset({"seed": -1})})
    with pytest.raises(ConfigurationError) as error:
        hooks.before_pipeline_run(run_params={}, pipeline=Pipeline([]), catalog=refused)
    problem, _, hint = str(error.value).partition("\n")
    assert problem.startswith("parameter 'seed': expected a number of at least 0")
    expected = f"The environment 'test' shrinks only the layers before it: use --env={better}."
    assert hint == ("" if better is None else expected)


# -- texts of one's own ------------------------------------------------------------------------------------------------


def ingested(folder: Path, *, kind: str, path: Path, **more: Any) -> Any:
    keys = {"columns": ["text"]} if kind in ("csv", "jsonl") else {}
    source = {"kind": kind, "name": "own", "path": str(path), **keys, **more}
    config = parse(IngestionConfig, {"sources": [source], "progress": False}, at="ingestion")
    return ingest(config, seed=0, workspace=folder / "records", quarantine=folder / "quarantine")


@pytest.mark.parametrize("content", [
    "text;label\na b;1\nc d;0\n", "text\tlabel\na b\t1\n", "the first text\nthe second\n",
    '{"text": "a"}\n{"text": "b"}\n',
])  # fmt: skip
def test_a_csv_file_of_another_form_names_the_keys_of_the_source(content: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.csv").write_text(content)
    with pytest.raises(SourceError) as error:
        ingested(tmp_path, kind="csv", path=path)
    assert str(error.value).endswith(
        "`--params ingestion.text_column=NAME`, others by the keys of the source. Give a file with another delimiter, "
        "without a header or of another kind as a whole source, for example `--params 'ingestion.sources=[{kind: csv, "
        'path: FILE, columns: [NAME], delimiter: ";"}]\'`, with `header: false` and `columns: ["0"]`, or with '
        "`kind: jsonl`."
    )


def test_the_remedies_of_the_message_read_these_files(tmp_path: Path) -> None:
    for name, content, source in (
        ("semicolons", "text;label\na b;1\nc d;0\n", {"kind": "csv", "delimiter": ";"}),
        ("no_header", "a b\nc d\n", {"kind": "csv", "header": False, "columns": ["0"]}),
        ("json", '{"text": "a b"}\n{"text": "c d"}\n', {"kind": "jsonl"}),
    ):
        (path := tmp_path / name).write_text(content)
        _, _, report = ingested(tmp_path / f"{name}-store", path=path, **source)
        assert (report["accepted"], report["quarantined"]) == (2, 0), name


def test_a_jsonl_file_without_the_column_is_not_taken_for_a_csv_file(tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text('{"texte": "a"}\n')
    with pytest.raises(SourceError, match=r"others by the keys of the source\.$"):
        ingested(tmp_path, kind="jsonl", path=path)


@pytest.mark.parametrize(("kind", "content"), [("csv", ""), ("csv", "text\n"), ("text", ""), ("jsonl", "")])
def test_an_empty_file_is_named(kind: str, content: str, tmp_path: Path) -> None:
    (path := tmp_path / "a").write_text(content)
    with pytest.raises(SourceError) as error:
        ingested(tmp_path, kind=kind, path=path)
    assert str(error.value) == (
        f"source 'own' is empty: expected rows in '{path}', found none. Check the source's 'path'."
    )


def test_a_text_file_that_is_not_utf_8_names_the_remedy(tmp_path: Path) -> None:
    (path := tmp_path / "a.txt").write_bytes("ein Text".encode("utf-16"))
    with pytest.raises(SamplingError, match=r"cannot be read as UTF-8 text \(.*\)\. Save it as UTF-8\.$"):
        read_texts(path)
