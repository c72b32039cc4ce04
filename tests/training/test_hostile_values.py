"""A value of a user or of a file is a bounded part of one line of its message, whatever it contains."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kedro.pipeline import Pipeline, node
from mm_ldlm.app.hooks.unread import unread
from test_saves_by_hand import made

from mm_ldlm.app.hooks import first_run
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError, MMLDLMError
from mm_ldlm.extras.foreign_checkpoints import importing
from mm_ldlm.extras.foreign_checkpoints.exporting import refuse_existing
from mm_ldlm.extras.foreign_checkpoints.reading import Legacy
from mm_ldlm.training import trial
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.state import TrainingState
from mm_ldlm.training.status import STATUS, read_status

FILE = Path("model.pt")
HOSTILE = "\x1b[31m\n\u2028" + "x" * 5000 + "\rend"


def training(name: str) -> Any:
    return parse(TrainingConfig, {"max_steps": 200, "batch": {"examples": 8}, "run_name": name}, at="training")


def written(place: Path, content: Any, name: str) -> Path:
    (place / name).write_text(json.dumps(content))
    return place / name


def ddit(place: Path, process: str) -> Any:
    written(place, {"model": {"diffusion_process": process}}, "config.yaml")
    return importing._ddit(Legacy(place / "model.pt", {}, None), importing.Given(), place)


def status(place: Path, value: Any) -> Any:
    written(place, value, STATUS)
    return read_status(place)


CASES: dict[str, tuple[Callable[[str, Path], Any], int]] = {
    "the name of a run": (lambda text, _: training(f"/{text}"), 300),
    "a counter": (lambda text, _: TrainingState.from_dict({"step": text}), 60),
    "a measure": (lambda text, _: TrainingState.from_dict({"seconds": text}), 60),
    "a status": (lambda text, place: status(place, [text]), 80),
    "a setting": (lambda text, _: importing._count("--heads", text, file=FILE), 60),
    "a process": (lambda text, place: ddit(place, text), 60),
    "no mapping": (lambda text, place: importing.read_yaml(written(place, [text], "a.yml")), 80),
    "no names": (lambda text, place: importing.read_names(written(place, {text: 1}, "a.yml")), 120),
    "a name": (lambda text, place: importing.read_names(written(place, {"names": {"a": [text]}}, "a.yml")), 80),
    "a folder": (lambda text, _: refuse_existing(Path(text * 2)), 210),
}


def words(call: Callable[[str, Path], Any], text: str, place: Path) -> str:
    with pytest.raises((MMLDLMError, ValueError)) as raised:
        call(text, place)
    return str(raised.value)


@pytest.mark.parametrize("case", CASES)
def test_a_value_of_any_letters_and_length_is_a_bounded_part_of_one_line(case: str, tmp_path: Path) -> None:
    call, most = CASES[case]
    plain = words(call, "qq" * (150 if case == "a folder" else 1), tmp_path)
    found = words(call, HOSTILE, tmp_path)
    assert found.isprintable()
    assert len(found) <= len(plain) + most + 10


def test_an_error_of_a_yaml_file_is_one_line_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yml").write_text("a: 1\nb: [\n")
    with pytest.raises(MMLDLMError) as raised:
        importing.read_yaml(tmp_path / "a.yml")
    assert str(raised.value).startswith(f"{tmp_path / 'a.yml'}, line 3: cannot be read as YAML (")

    def fails(text: str) -> Any:
        raise ValueError(HOSTILE)

    monkeypatch.setattr(yaml, "safe_load", fails)
    with pytest.raises(MMLDLMError) as raised:
        importing.read_yaml(tmp_path / "a.yml")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < len(str(tmp_path)) + 250


def test_an_error_of_a_restore_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = made(tmp_path)
    saves.save({})

    def fails(path: Path, document: Any) -> Any:
        raise error

    monkeypatch.setattr(saves, "_restore_state", fails)
    for kind in (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError):
        error = kind(HOSTILE)
        with pytest.raises(MMLDLMError) as raised:
            saves.restore()
        text = str(raised.value)
        assert text.isprintable()
        assert f"({kind.__name__}: " in text
        assert text.endswith("). Choose another checkpoint.")
        assert len(text) < len(str(tmp_path)) + 400


@pytest.mark.parametrize(
    ("error", "begins"), [(ConfigurationError, "the training could not be measured ("), (KeyError, "(KeyError: ")]
)
def test_a_measurement_that_failed_is_one_line_of_the_log(
    error: type[Exception], begins: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error(HOSTILE)

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(trial, "measure", fails)
    first_run.measure_training(None, {}, seed=0)
    (text,) = caplog.messages
    assert begins in text
    assert text.isprintable()
    assert len(text) < 450
    assert text.startswith("time: the training could not be measured (")
    assert text.endswith("); it will show its time after its first steps")


def test_a_parameter_without_effect_is_named_in_one_line() -> None:
    section = "\x1b[31m\n" + "x" * 5000
    reads = Pipeline([node(lambda given: given, f"params:{section}", "out")])
    found = unread({section: 1}, Pipeline([]), {"training": reads})
    assert found is not None
    assert found.isprintable()
    assert len(found) < 1600
    assert "is read only by training. Run a pipeline that reads them as well" in found
    assert unread({section: 1}, reads, {"training": reads}) is None
    compares = SimpleNamespace(nodes=[SimpleNamespace(tags={"training"}), SimpleNamespace(tags={"comparison"})])
    assert unread({section: 1}, compares, {"training": reads}) is None, "its sessions receive every parameter"  # type: ignore[arg-type]
