"""Names in the options of the command, in a project of two pipelines; who makes an artifact; where it writes."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from kedro.framework import project as kedro_project
from kedro.io import DatasetError
from kedro.pipeline import Pipeline, node

from mm_ldlm import cli
from mm_ldlm.app import console
from mm_ldlm.app.config_loader import LayeredConfigLoader, parse_yaml
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.settings import CONFIG_LOADER_ARGS


@pytest.fixture(autouse=True)
def pipelines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Pipeline]:
    """`reading` makes b of a, `writing` c of b; the default pipeline is `reading` alone."""
    reading = Pipeline([node("".join, "a", "b", name="make", namespace="reading", tags="early")])
    writing = Pipeline([node("".join, "b", "c", name="end", namespace="writing", tags="late")])
    made = {"__default__": reading, "reading": reading, "writing": writing}
    monkeypatch.setattr(kedro_project, "pipelines", made)
    return made


def names_of(pipeline: Pipeline) -> list[str]:
    return sorted(pipeline.datasets())


@pytest.mark.parametrize("option", ["from_inputs", "to_outputs"])
def test_a_dataset_is_one_of_the_chosen_pipelines(option: str, pipelines: dict[str, Pipeline]) -> None:
    for chosen in (None, ["reading"], ["writing"], ["reading", "writing"]):
        graph = sum((pipelines[name] for name in chosen or ["__default__"]), Pipeline([]))
        given = {"pipelines": chosen, option: tuple(names_of(graph))}
        assert cli.check_names(given) == given
        within = ", ".join(chosen or ["__default__"])
        with pytest.raises(ConfigurationError) as error:
            cli.check_names({"pipelines": chosen, option: ("z",)})
        assert str(error.value) == (f"'z' is not a dataset of {within}. Choose one of: {', '.join(names_of(graph))}.")


@pytest.mark.parametrize("option", ["node_names", "from_nodes", "to_nodes"])
def test_a_node_is_one_of_any_chosen_pipeline(option: str) -> None:
    both = ["reading", "writing"]
    given = cli.check_names({"pipelines": both, option: ("end", "reading.make"), "tags": ("late", "early")})
    assert given == {"pipelines": both, option: ["writing.end", "reading.make"], "tags": ("late", "early")}
    assert cli.check_names({"pipelines": both, option: ()}) == {"pipelines": both, option: ()}
    with pytest.raises(ConfigurationError) as error:
        cli.check_names({"pipelines": ["reading"], option: ("end",)})
    assert str(error.value) == "'end' is not a node of reading. Choose one of: reading.make."
    with pytest.raises(ConfigurationError, match=r"^'mak' is not a node of reading\. Did you mean 'make'\? Choose"):
        cli.check_names({"pipelines": ["reading"], option: ("mak",)})
    with pytest.raises(ConfigurationError, match=r"^'late' is not a tag of __default__\. .*Choose one of: early\.$"):
        cli.check_names({"tags": ("late",)})


def test_every_pipeline_that_writes_an_artifact_is_named_but_not_the_default(pipelines: dict[str, Pipeline]) -> None:
    pipelines["again"] = pipelines["reading"]
    (artifact,) = pipelines["reading"].all_outputs()
    causes: list[tuple[Exception, str]] = [
        (FileNotFoundError(2, "no", "b.json"), " (b.json) does not exist yet"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
         " cannot be read ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
        (json.JSONDecodeError("Expecting value", "[", 1),
         " cannot be read (Expecting value: line 1 column 2 (char 1))"),
    ]  # fmt: skip
    for cause, words in causes:
        error, between = DatasetError("outer"), DatasetError("inner")
        error.__cause__, between.__cause__ = between, cause
        assert str(cli.unreadable(error, artifact)) == (
            f"'{artifact}'{words}. Run the pipeline that writes it first: `kedro run --pipeline=reading` or "
            "`kedro run --pipeline=again`."
        )
    error.__cause__ = DatasetError("the MemoryDataset has no data")
    assert str(cli.unreadable(error, artifact)) == (
        f"'{artifact}' is kept in memory alone, so the node that makes it has to run too. Add it: "
        "`--nodes=reading.make,…`."
    )


def test_the_cause_of_a_failed_write_comes_before_what_was_handled_meanwhile() -> None:
    error, full, denied = (
        DatasetError("not saved"),
        OSError(errno.ENOSPC, "full", "a"),
        OSError(errno.EACCES, "no", "b"),
    )
    error.__cause__, error.__context__ = full, denied
    assert "the disk is full at a" in str(cli.unwritable(error))
    error.__cause__ = None
    assert "at b" in str(cli.unwritable(error))


@pytest.mark.parametrize("key", ["config", "parms", "pipelin"])
def test_a_file_of_options_has_the_options_of_the_command_without_itself(key: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yml"
    file.write_text(f"run: {{{key}: x}}\n")
    with pytest.raises(
        ConfigurationError, match=rf"^'{key}' is not a key of 'run' in {re.escape(str(file))}\."
    ) as error:
        cli._options_in(file)
    known = str(error.value).partition("Choose one of: ")[2].rstrip(".").split(", ")
    assert {"env", "params", "pipelines", "tags"} < set(known)
    assert "config" not in known


# -- the files of an environment ---------------------------------------------------------------------------------------


def test_hidden_folders_are_no_environments_and_credentials_alone_read_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "base/parameters.yml": "a: 1\n", "base/catalog.yml": "x: {type: MemoryDataset}\n",
        ".hidden/parameters.yml": "a: 2\n", "own/parameters.yml": "a: '${oc.env:MM_LDLM_WORD}'\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("MM_LDLM_WORD", "secret")

    def loader(env: str | None, **runtime: Any) -> LayeredConfigLoader:
        return LayeredConfigLoader(tmp_path, env=env, runtime_params=runtime, **CONFIG_LOADER_ARGS)

    with pytest.raises(ConfigurationError, match=r"'\.hidden' is not known\. .*: base, own\. Combine") as error:
        loader(".hidden")
    assert "hidden, " not in str(error.value)
    with pytest.raises(ConfigurationError) as error:
        loader("own")["parameters"]
    assert "secret" not in str(error.value)
    assert loader("base", b={"c": 3})["parameters"] == {"a": 1, "b": {"c": 3}}


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [(b"a: 1\nb: [\nc: 2\n", 4, "expected"), (b"a: 1\n\xff\n", 2, "byte 0xff is not UTF-8"),
     (b"a: 1\nb: 2\na: 3\n", 3, "found duplicate key a"), (b"\n\na: *x\n", 3, "found undefined alias 'x'"),
     ("ä: 1\nö: 2\nb: \x07\n".encode(), 3, "special characters are not allowed")],
)  # fmt: skip
def test_a_fault_of_a_file_is_found_in_its_line(content: bytes, line: int, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^f\.yml, line {line}: cannot be read as YAML: .*{reason}"):
        parse_yaml(content, file="f.yml")


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_an_export_says_which_weights_it_wrote(
    averages: bool, last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if averages:
        (tmp_path / "ema.safetensors").touch()
    monkeypatch.setattr("mm_ldlm.extras.foreign_checkpoints.exporting.export_checkpoint", lambda *_, **__: tmp_path)
    result = CliRunner().invoke(console.commands, ["export-checkpoint", "R", "F", *(["--last"] if last else [])])
    which = "averaged" if averages and not last else "last"
    assert result.output == f"F/model.pt: the {which} weights of {tmp_path}\n"


@pytest.mark.parametrize(("form", "left_out", "words"), [
    (None, [], "R: 2 parameters; left out: nothing"),
    ("ddit", [], "R: 2 parameters of the format ddit; left out: nothing"),
    (None, ["b"], "R: 2 parameters; left out: b"),
])  # fmt: skip
def test_an_import_says_what_it_took_and_what_follows(
    form: str | None, left_out: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(tensors={"x": 1, "y": 2}, format=form, left_out=left_out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mm_ldlm.extras.foreign_checkpoints.importing.import_checkpoint", lambda *_: made)
    result = CliRunner().invoke(console.commands, ["import-checkpoint", "S", "R"])
    assert result.stdout == f"{words}\n"
    assert result.stderr == (
        "Sample from it by `kedro run --pipelines=sampling --params run=R` or MMLDLM.from_run('R'); start a "
        f"training by `--params training.init_from={tmp_path / 'R'}`.\n"
    )


@pytest.mark.parametrize("name", ["a.md", "parameters.yml~", "catalog.yml.bak", "x.orig", "x.swp", "_notes.yml",
                                  "_drafts/parameters.yml", "parameters_of/.hidden.toml", ".idea/x.toml"])  # fmt: skip
def test_files_of_an_editor_and_hidden_ones_are_no_configuration(name: str, tmp_path: Path) -> None:
    for path, text in {"base/parameters.yml": "a: 1\n", "base/catalog.yml": "x: {type: MemoryDataset}\n",
                       "own/parameters.yml": "a: 2\n", f"own/{name}": "b: 3\n"}.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    loader = LayeredConfigLoader(tmp_path, env="own", **CONFIG_LOADER_ARGS)
    loader.refuse_unknown_files()
    (tmp_path / "own/notes.toml").write_text("")
    with pytest.raises(ConfigurationError, match=r"^environment 'own': no command reads its file 'notes\.toml'\."):
        loader.refuse_unknown_files()


@pytest.mark.parametrize(
    ("command", "expected"),
    [("`kedro run`", "`kedro run --params data=d,results=r`"),
     ("`kedro run --pipeline=sampling`", "`kedro run --pipeline=sampling --params data=d,results=r,run=u`"),
     ("`kedro run --params results=other`", "`kedro run --params data=d,results=other`"),
     ("`kedro run --params=seed=1`", "`kedro run --params=data=d,results=r,seed=1`"),
     ("`kedro run --pipelines=export,sampling`", "`kedro run --pipelines=export,sampling --params data=d,results=r`")],
)  # fmt: skip
def test_a_suggested_command_has_every_place_of_the_run(command: str, expected: str) -> None:
    params = {"data": "d", "results": "r", "run": "u", "seed": 3}
    assert cli.on_the_same_artifacts(f"First {command}.", {"params": params}) == f"First {expected}."


@pytest.mark.parametrize(
    ("words", "changes"), [([], None), (["--temperature", "0"], 0.0), (["--temperature", "2"], 2.0)]
)
def test_a_temperature_of_zero_is_one_as_well(
    words: list[str], changes: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    chosen = SimpleNamespace(override=lambda **given: given)
    made = SimpleNamespace(texts=["a"])
    model = SimpleNamespace(
        model=SimpleNamespace(default_sampler=lambda *, conditional: chosen),
        invert=lambda file, **given: asked.append(given["sampler"]) or made,
    )
    monkeypatch.setattr(console, "_load", lambda **_: (model, 0))
    assert CliRunner().invoke(console.commands, ["invert", "a.npy", *words]).output == "a\n"
    assert asked == [None if changes is None else {"temperature": changes}]
