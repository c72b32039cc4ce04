"""What the commands print, line by line, and the refusals of a run, a device, a report and a log to the letter."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from kedro.framework.cli.project import run as kedro_run

from mm_ldlm import cli
from mm_ldlm.app import console
from mm_ldlm.app.parameters import _of_run, check_files, check_machine
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError, StoreError
from mm_ldlm.data.sentences import Sentences
from mm_ldlm.extras.http_encoder import keys as api_keys
from mm_ldlm.families.classification.labels import refuse_other_labels
from mm_ldlm.pipeline_registry import ALONE, register_pipelines
from mm_ldlm.pipelines import MAIN
from mm_ldlm.training.jsonl import read_lines


def refusal(call: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(MMLDLMError) as error:
        call(*given, **named)
    return str(error.value)


# -- mm-ldlm -----------------------------------------------------------------------------------------------------------


class Texts(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.texts)


TEXTS = {"texts": ("a\tb\n c", "", "d"), "log_probs": np.array([-1.0, -0.00049, 2.5])}


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({"rows": None, "samples": None, "cosines": None},
         ["0\t0\t\t-1.000\ta b c", "1\t0\t\t-0.000\t", "2\t0\t\t2.500\td"]),
        ({"rows": np.array([4, 4, 5]), "samples": np.array([0, 1, 0]), "cosines": np.array([0.12345, -1, 1])},
         ["4\t0\t0.1235\t-1.000\ta b c", "4\t1\t-1.0000\t-0.000\t", "5\t0\t1.0000\t2.500\td"]),
    ],
)  # fmt: skip
def test_each_text_is_a_line_of_the_table(
    more: dict[str, Any], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SimpleNamespace(invert=lambda file, **given: Texts(**TEXTS, **more))
    monkeypatch.setattr(console, "_load", lambda **_: (model, 0))
    result = CliRunner().invoke(console.commands, ["invert", "a.npy", "--table"])
    assert result.stdout.split("\n") == ["row\tsample\tcosine\tlog_prob\ttext", *lines, ""]
    result = CliRunner().invoke(console.commands, ["invert", "a.npy"])
    assert (result.stdout, result.stderr) == ("a b c\n\nd\n", "")


def test_embedded_texts_are_counted_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    latents = np.arange(6.0).reshape(2, 3)
    made: Any = SimpleNamespace(latents=latents)
    model = SimpleNamespace(embed=lambda texts, **_: type("Made", (list,), {"latents": latents})(texts))
    monkeypatch.setattr(console, "_load", lambda **_: (model, 0))
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    result = CliRunner().invoke(console.commands, ["embed", str(tmp_path / "t.txt"), str(tmp_path / "deep" / "o.npy")])
    assert (result.stdout, result.stderr) == ("", f"2 latents of dimension 3 in {tmp_path / 'deep' / 'o.npy'}\n")
    found = np.load(tmp_path / "deep" / "o.npy")
    assert (found.tolist(), found.dtype) == (made.latents.tolist(), np.float32)


@pytest.mark.parametrize("folder", [True, False])
def test_the_newest_run_is_named_where_a_folder_of_runs_was_given(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    newest = tmp_path / "b" if folder else tmp_path
    monkeypatch.setattr("mm_ldlm.training.checkpoints.folder.newest_run", lambda path: newest)
    monkeypatch.setattr(
        "mm_ldlm.inference.MMLDLM",
        SimpleNamespace(from_run=lambda *given, **how: asked.append((given, how)) or "model"),
    )
    assert console._load(run=str(tmp_path), checkpoint="best", device="cpu", seed=9) == ("model", 9)
    assert asked == [((str(tmp_path),), {"checkpoint": "best", "device": "cpu"})]
    shown = f"run {newest}, the newest in {tmp_path}; --run chooses another\n" if folder else ""
    assert capsys.readouterr() == ("", shown)


def test_every_option_of_a_run_has_kedros_help_or_the_projects_own() -> None:
    run = cli.cli.commands["run"]
    own = {str(each.name): each for each in run.params}
    kedros = {str(each.name): each for each in kedro_run.params}
    assert list(own) == list(kedros)
    assert set(cli.HELP) < set(own)
    for name, option in own.items():
        assert isinstance(option, click.Option)
        theirs = kedros[name]
        assert option is not theirs, "Kedro's own command keeps its options"
        assert option.help == cli.HELP.get(name, getattr(theirs, "help", None))
        assert option.is_eager == (name == "config")
        assert option.callback is {"params": cli.read_params, "config": cli.read_config}.get(name, theirs.callback)
    assert (run.help, run.callback) == (kedro_run.help, cli.run)


def test_the_pipelines_are_registered_in_the_order_of_the_main_job() -> None:
    assert list(register_pipelines()) == ["__default__", *MAIN, *ALONE]


# -- parameters --------------------------------------------------------------------------------------------------------


def test_every_device_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    devices = {"training": "cuda:1", "encoder": "cuda", "sampling": "cuda:2", "evaluation": None}
    typed = {name: SimpleNamespace(device=device) for name, device in devices.items()}
    assert refusal(check_machine, typed, read={*devices, "embedding"}, trains=True).splitlines() == [
        "parameter 'training.device': cuda:1 is not on this machine, which has 1 GPUs. Set it to auto or cpu.",
        "parameter 'sampling.device': cuda:2 is not on this machine, which has 1 GPUs. Set it to null or cpu.",
    ]
    assert refusal(check_machine, typed, read=set(devices), trains=False).splitlines() == [
        "parameter 'sampling.device': cuda:2 is not on this machine, which has 1 GPUs. Set it to null or cpu."
    ]


def test_what_is_compared_is_a_folder_or_the_id_of_a_run(tmp_path: Path) -> None:
    names = (str(tmp_path), "0123456789abcdef" * 2, "none", "0123456789abcdeg" * 2)
    typed = {"reporting": SimpleNamespace(compare=names)}
    assert refusal(check_files, typed, read={"reporting"}).splitlines() == [
        f"parameter 'reporting.compare.{place}': expected a run folder, a folder with a metrics.json, or the id of an "
        f"MLflow run (32 hexadecimal digits), found {names[place]!r}. Correct it or remove it from the list."
        for place in (2, 3)
    ]
    check_files(typed, read=set())


@pytest.mark.parametrize("section", ["sampling", "evaluation"])
def test_a_chosen_checkpoint_leaves_no_other_to_the_sections(section: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run-1" / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").touch()
    config = {"model": {"kind": "dit"}, "objective": {"kind": "text_diffusion"}, "training": {"no": 1}}
    (tmp_path / "run-1/config.json").write_text(json.dumps(config))
    typed = {name: SimpleNamespace(checkpoint="latest") for name in ("sampling", "evaluation")}
    for path in (checkpoint, tmp_path / "run-1"):
        found = _of_run(str(path), typed)
        assert {name: value.kind for name, value in found.items()} == {"model": "dit", "objective": "text_diffusion"}
    assert list(_of_run(str(checkpoint), {})) == ["model", "objective"]
    typed[section].checkpoint = "40"
    assert refusal(_of_run, str(checkpoint), typed) == (
        f"parameter '{section}.checkpoint': expected latest, because 'run' names the checkpoint step-00000005, found "
        "'40'. Leave it out, or give the folder of the run as 'run'."
    )
    assert set(_of_run(str(tmp_path / "run-1"), typed)) == {"model", "objective"}
    (tmp_path / "run-1/config.json").write_text(json.dumps({**config, "model": {"kind": "dit", "dimm": 3}}))
    assert refusal(_of_run, str(checkpoint), {}).startswith(
        f"parameter 'model (of the run {checkpoint}).dimm' is not known. Did you mean 'dim'? Known here: "
    )


# -- stores and logs ---------------------------------------------------------------------------------------------------


def test_sentences_without_latents_say_how_to_get_some() -> None:
    found = Sentences(("i",), ("t",), ((1,),), None)
    assert refusal(lambda: found.latents) == (
        "expected sentences with latents, found a dataset without latents. Check the run's capabilities before using "
        "latents, or run `kedro run --pipelines=embedding,validation`."
    )
    assert len(found) == 1


def test_labels_of_another_key_are_refused_to_the_letter() -> None:
    store: Any = SimpleNamespace(manifest=SimpleNamespace(meta={"key": "topic"}))
    assert refusal(refuse_other_labels, store, key="shape") == (
        "parameter 'objective.label' is 'shape'; the labels of the validated dataset are those of 'topic'. Run `kedro "
        "run --pipeline=validation` with this label first, or restore the other label."
    )
    store.manifest.meta.clear()
    assert "are those of 'None'. Run" in refusal(refuse_other_labels, store, key="shape")


def test_a_damaged_log_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n\n[' + b"[" * 100_000 + b"\n{\n")
    wanted = f"{path}: line 3 is not a JSON object, so the log is damaged. Remove this line."
    assert refusal(read_lines, path) == wanted
    path.write_bytes(b'{"step": 1}\n\n\xff\n')
    assert refusal(read_lines, path) == wanted
    with pytest.raises(StoreError):
        read_lines(tmp_path)


def test_a_key_that_is_missing_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    wanted = (
        "parameter 'x.y': expected a key in the environment variable SOME_KEY, found none. Set the variable in the "
        "shell that starts the run, or name another one."
    )
    assert api_keys.missing("SOME_KEY", parameter="x.y") == wanted
    with pytest.raises(ConfigurationError) as error:
        api_keys.read_key("SOME_KEY", parameter="x.y")
    assert str(error.value) == wanted
    for value, there in (("", False), (" \n", False), ("a", True)):
        monkeypatch.setenv("SOME_KEY", value)
        assert api_keys.is_set("SOME_KEY") is there
