"""Checkpoints without a marker, records of other trainers without fields, and where a step is looked for."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.converting import refuse_obstacles
from mm_ldlm.extras.foreign_checkpoints.formats import DDIT
from mm_ldlm.training.checkpoints import folder


@pytest.mark.parametrize("call", [folder.check, folder.step_of])
def test_a_folder_without_a_marker_is_no_complete_checkpoint(call: Any, tmp_path: Path) -> None:
    (tmp_path / "a copy").mkdir()
    with pytest.raises(
        CheckpointError, match=r"a copy: no COMPLETE, so the checkpoint is not complete\. Choose another"
    ):
        call(tmp_path / "a copy")
    (tmp_path / "a copy" / "COMPLETE").write_text("{")
    with pytest.raises(CheckpointError, match=r"a copy/COMPLETE: not readable"):
        call(tmp_path / "a copy")


def test_a_checkpoint_of_step_0_and_files_without_bytes_are_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "empty.txt").touch()
    path = folder.write(tmp_path, 0, folder.Contents({}, {}, {"tok": tmp_path / "tok"}))
    assert folder.check(path)["files"]["tok/empty.txt"]["bytes"] == 0
    assert folder.step_of(path.rename(tmp_path / "renamed")) == 0


@pytest.mark.parametrize("state", [None, (None, {"step": 5}), {"step": 7, 3: "no text"}])
def test_a_record_of_another_trainer_may_have_arguments_and_other_states(
    state: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is not imported, so that arguments and slots have no names."""

    class TrainingState:
        def __init__(self, *_: Any) -> None: ...

        def __reduce__(self) -> Any:
            return (TrainingState, (1, 2)) if state is None else (TrainingState, (1, 2), state)

    module = types.ModuleType("their_trainer")
    module.TrainingState = TrainingState  # type: ignore[attr-defined]
    TrainingState.__module__, TrainingState.__qualname__ = "their_trainer", "TrainingState"
    monkeypatch.setitem(sys.modules, "their_trainer", module)
    torch.save({"model": {"a": torch.ones(2)}, "state": TrainingState()}, tmp_path / "model.pt")
    monkeypatch.delitem(sys.modules, "their_trainer")
    found = legacy.read(tmp_path)
    assert list(found.tensors) == ["a"]
    assert found.step == (7 if isinstance(state, dict) else None)


@pytest.mark.parametrize(
    ("inside", "beside", "step"),
    [
        ({"step": 3, "global_step": 4}, {}, 3),
        ({"global_step": 4}, {"training_state.json": {"step": 9}}, 4),
        ({}, {"training_state.json": {"state": {"step": 9}}, "state.json": {"step": 8}}, 9),
        ({"step": True}, {"state.json": {"global_step": 10**18 - 1}}, 10**18 - 1),
        ({"step": -1}, {"state.json": {"step": 10**18}}, None),
    ],
)
def test_the_step_is_that_of_the_file_before_those_beside_it(
    inside: dict[str, Any], beside: dict[str, Any], step: int | None, tmp_path: Path
) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}, **inside}, tmp_path / "model.pt")
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert legacy.read(tmp_path).step == step


def test_the_first_known_key_of_a_file_has_the_weights(tmp_path: Path) -> None:
    keys = ("model_state_dict", "state_dict", "model", "module")
    for number, first in enumerate(keys):
        torch.save({key: {key: torch.ones(1)} for key in reversed(keys[number:])}, tmp_path / "model.pt")
        assert list(legacy.read(tmp_path).tensors) == [first]


@pytest.mark.parametrize("name", ["module.a.b", "_orig_mod.a.b", "model.a.b", "backbone.a.b", "module.backbone.a.b"])
def test_every_wrapper_is_removed_from_a_name(name: str) -> None:
    assert legacy.plain_name(name) == "a.b"
    assert legacy.plain_name("a.model.b") == "a.model.b"


def test_at_most_six_foreign_classes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("their_trainer")
    for number in range(7):
        made = type(f"Class{number}", (), {"__module__": "their_trainer"})
        setattr(module, made.__name__, made)
    monkeypatch.setitem(sys.modules, "their_trainer", module)
    objects = {name: made() for name, made in vars(module).items() if name.startswith("Class")}
    torch.save({"model": {"a": torch.ones(1)}, **objects}, tmp_path / "model.pt")
    monkeypatch.delitem(sys.modules, "their_trainer")
    with pytest.raises(CheckpointError) as refused:
        legacy.read(tmp_path)
    assert str(refused.value).count("their_trainer.Class") == 6


def test_at_most_three_names_show_each_part_that_no_model_has() -> None:
    names = [f"latent_encoder.{part}" for part in "abcde"]
    with pytest.raises(CheckpointError) as refused:
        refuse_obstacles(DDIT, names, Path("f"))
    words = "latent_encoder.a, latent_encoder.b, latent_encoder.c and 2 more: an MLP of the latent"
    assert words in str(refused.value)
