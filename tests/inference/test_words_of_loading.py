"""Runs that cannot be loaded: the file is named with its whole path, what was found in it, and what to do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import CheckpointError, ConfigurationError, SamplingError
from mm_ldlm.inference import loading
from mm_ldlm.models.base import DataShape
from mm_ldlm.training.checkpoints import folder

NUMBERS = ", ".join(field.name for field in dataclasses.fields(DataShape))


def changed(path: Path, **keys: Any) -> Path:
    """Write a config.json of a run beside it, with other keys; None removes one."""
    config = json.loads((path / "config.json").read_text()) | keys
    (path / "other.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return path / "other.json"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": None, "objective": None, "shape": None},
         "model, objective, shape missing. Give the path of a run folder."),
        ({"shape": 3}, "expected a mapping under 'shape', found 3. Restore it, or choose another run."),
        ({"fingerprints": [4]},
         "expected a mapping under 'fingerprints', found [4]. Restore it, or choose another run."),
        ({"fingerprints": "x" * 99},
         f"expected a mapping under 'fingerprints', found '{'x' * 59}. Restore it, or choose another run."),
        ({"shape": {"pad_id": 3}},
         f"expected the numbers {NUMBERS} under 'shape', found {{'pad_id': 3}}. Restore it, or choose another run."),
        ({"shape": {"pad_id": "x" * 300}},
         f"expected the numbers {NUMBERS} under 'shape', found {{'pad_id': '{'x' * 188}. Restore it, or choose another "
         "run."),
    ],
)  # fmt: skip
def test_a_config_names_what_is_wrong_in_it(keys: Any, message: str, run_folder: Path) -> None:
    path = changed(run_folder, **keys)
    with pytest.raises(CheckpointError) as error:
        loading._read_config(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "expected a mapping, found [1, 2]. Restore it, or choose another run."),
        ('"' + "x" * 99 + '"', f"expected a mapping, found '{'x' * 59}. Restore it, or choose another run."),
    ],
)
def test_a_config_that_is_no_mapping_is_shown(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError) as error:
        loading._read_config(path)
    assert str(error.value) == f"{path}: {message}"


def test_a_config_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent.json", r"\(.*No such file.*\)"), (tmp_path / "cut.json", r"\(.+\)")):
        (tmp_path / "cut.json").write_text('{"a": ')
        with pytest.raises(CheckpointError, match=rf"^{path}: not readable as JSON {reason}\. Restore it, or choose"):
            loading._read_config(path)


def test_a_folder_that_is_no_run_is_named_with_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "rum-2").mkdir()
    with pytest.raises(CheckpointError) as error:
        loading.load_run(tmp_path / "run-2")
    assert str(error.value) in {
        f"'{tmp_path / 'run-2'}': no such run folder. Did you mean '{name}'?" for name in ("run-1", "rum-2")
    }
    with pytest.raises(CheckpointError) as error:
        loading.load_run(tmp_path / "away" / "run-2")
    assert str(error.value) == f"'{tmp_path / 'away' / 'run-2'}': no such run folder.{loading.ELSEWHERE}"
    with pytest.raises(CheckpointError) as error:
        loading.run_config(tmp_path / "run-1", tmp_path / "run-1" / "checkpoints" / "step-00000001")
    assert str(error.value) == (
        f"{tmp_path / 'run-1'}: expected a run folder with config.json, found none. Give the path of a run folder."
    )


@pytest.mark.parametrize("use_ema", [True, False])
def test_the_weights_that_do_not_fit_are_named_by_their_file(use_ema: bool, run_folder: Path, tmp_path: Path) -> None:
    step, run = run_folder / "checkpoints" / "step-00000003", tmp_path / "other"
    name = "ema.safetensors" if use_ema else "model.safetensors"
    tensors = {each: folder.tensors(step, each) for each in ("ema.safetensors", "model.safetensors")}
    gone = sorted(tensors[name])[0]
    tensors[name] = {key: value for key, value in tensors[name].items() if key != gone}
    tensors[name]["added"] = torch.zeros(2)
    states = {"training_state.json": json.loads((step / "training_state.json").read_text())}
    kept = {each: step / each for each in ("tokenizer", "normaliser")}
    folder.write(run / "checkpoints", 3, folder.Contents(tensors, states, kept))
    (run / "config.json").write_text((run_folder / "config.json").read_text())
    with pytest.raises(CheckpointError) as error:
        loading.load_run(run, use_ema=use_ema)
    assert str(error.value) == (
        f"{run / 'checkpoints' / 'step-00000003' / name} does not fit this model. Missing: ['{gone}']. Unknown: "
        "['added']. Shapes: equal. Use the configuration that the checkpoint was trained with, or choose another "
        "checkpoint."
    )
    assert loading.load_run(run, use_ema=not use_ema).step == 3


def test_another_config_is_refused_with_the_checkpoint_and_the_remedy(run_folder: Path) -> None:
    config = json.loads((run_folder / "config.json").read_text())
    config["model"]["depth"] = 3
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as error:
        loading.load_run(run_folder)
    lines = str(error.value).splitlines()
    assert lines[0].startswith(f"{run_folder / 'checkpoints' / 'step-00000003'}")
    assert "model.depth: checkpoint has 2, this run 3" in lines[1]
    assert lines[-1].endswith("Restore the config.json that the run was trained with, or choose another checkpoint.")


@pytest.mark.parametrize(
    ("path", "shown"), [(3, "3"), (None, "None"), (b"run", "b'run'"), ([], "[]")]
)  # fmt: skip
def test_what_is_no_path_is_shown(path: Any, shown: str) -> None:
    with pytest.raises(SamplingError) as error:
        loading.load_run(path)
    assert str(error.value) == f"expected a path, found {shown}."


def test_an_encoder_that_is_not_installed_is_refused_when_it_is_needed(parts: Any, tmp_path: Path) -> None:
    """The run inverts and scores without it."""
    run = parts.write_run(tmp_path / "run", encoder={"kind": "no_such_package.encoders:Encoder"}, fingerprints={})
    found = loading.load_run(run)
    assert found.no_encoder is None
    assert found.load_encoder is not None
    with pytest.raises(ConfigurationError, match=r"no_such_package"):
        found.load_encoder()


def test_a_run_of_given_vectors_has_a_reason_instead_of_an_encoder(parts: Any, tmp_path: Path) -> None:
    given = {"kind": "precomputed", "name": "ours", "dim": 6, "normalised": True}
    run = parts.write_run(tmp_path / "run", encoder=given, fingerprints={})
    found = loading.load_run(run)
    assert found.load_encoder is None
    assert found.no_encoder is not None
    assert found.no_encoder.startswith("the vectors of the encoder 'ours' come from the sources, and no encoder is")
    assert (found.normaliser is None, found.image_normaliser, found.fingerprints) == (False, None, {})


@pytest.mark.parametrize(
    ("section", "key", "value", "line"),
    [
        ("model", "depth", 3, "model.depth: checkpoint has 2, this run 3"),
        ("shape", "max_length", 9, "shape.max_length: checkpoint has 12, this run 9"),
        ("objective", "process", {"kind": "uniform"},
         "objective.process: checkpoint has 'absorbing', this run 'uniform'"),
        ("fingerprints", "tokenizer", "abc", "tokenizer: checkpoint has '', this run 'abc'"),
        ("fingerprints", "encoder", "abc", f"encoder: checkpoint has '{'0' * 32}', this run 'abc'"),
    ],
)  # fmt: skip
def test_a_run_is_that_of_its_checkpoint_in_every_part(
    section: str, key: str, value: Any, line: str, run_folder: Path
) -> None:
    config = json.loads((run_folder / "config.json").read_text())
    config[section][key] = value
    (run_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="belongs to another model") as error:
        loading.load_run(run_folder)
    assert line in str(error.value)
