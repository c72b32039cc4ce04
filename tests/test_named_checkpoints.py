"""Checkpoints that `training.resume` and `training.init_from` name: looked for before the run, by their own keys."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mm_ldlm.app.parameters import _without_checkpoint
from mm_ldlm.core.config import PositiveInt, config
from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.training import resuming
from mm_ldlm.training.checkpoints import folder


@config
class Model:
    size: PositiveInt = 1


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with checkpoints, a run that went back, a folder that is none, and a file of another trainer."""

    def find(path: Path, *, which: str = "latest") -> Path:
        if path.name in ("run", "step-4"):
            return path
        raise CheckpointError(f"no {which} in {path.name}\nbut others")

    monkeypatch.setattr(folder, "find", find)
    monkeypatch.setattr(resuming, "went_back", lambda path: "gone" in path.parts)
    monkeypatch.setattr(legacy, "is_legacy", lambda path: path.suffix == ".pt")
    monkeypatch.setattr(legacy, "read", lambda path: SimpleNamespace(tensors={}, file=path))
    monkeypatch.setattr(
        "mm_ldlm.extras.foreign_checkpoints.converting.refuse_other_model", lambda tensors, model, file: None
    )
    for name in ("run/checkpoints/step-4", "empty", "gone/checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a.pt").touch()
    return tmp_path


def problems(runs: Path, **named: Any) -> list[str]:
    training = SimpleNamespace(**{"resume": "auto", "init_from": None, **named})
    return list(_without_checkpoint(training, Model(), runs))


@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_a_run_or_a_checkpoint_is_named_by_its_key(key: str, runs: Path) -> None:
    for fits in ("auto", "never", None, "run", "run/checkpoints/step-4", str(runs / "run")):
        assert problems(runs, **{key: fits}) == []
    assert problems(runs, **{key: "empty"}) == [f"parameter 'training.{key}': no latest in empty\\nbut others"]
    assert problems(runs, **{key: "run/checkpoints/step-9"}) == [
        f"parameter 'training.{key}': no 9 in checkpoints\\nbut others"
    ]
    assert problems(runs, **{key: "runn"}) == [
        f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at 'runn' (relative to "
        f"{runs}). Did you mean 'run'? Correct the name, or set an absolute path."
    ]
    assert problems(runs, **{key: "zzz/zzz"}) == [
        f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at 'zzz/zzz' (relative "
        f"to {runs}). Correct the name, or set an absolute path."
    ]


def test_only_initial_weights_may_be_those_of_another_trainer_and_only_a_run_may_have_gone_back(runs: Path) -> None:
    assert problems(runs, init_from="a.pt") == []
    assert [line.partition(", found")[0] for line in problems(runs, resume="a.pt")] == [
        "parameter 'training.resume': expected the folder of a run or a checkpoint"
    ]
    assert problems(runs, resume="gone/checkpoints/step-7") == []
    assert problems(runs, init_from="gone/checkpoints/step-7") == [
        "parameter 'training.init_from': no 7 in checkpoints\\nbut others"
    ]
    both = problems(runs, resume="empty", init_from="zzz")
    assert [line.partition(":")[0] for line in both] == [
        "parameter 'training.resume'",
        "parameter 'training.init_from'",
    ]


def test_weights_of_another_trainer_are_compared_with_the_model(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensors: Any, model: Any, file: Path) -> None:
        assert (tensors, model, file) == ({}, {"size": 1}, runs / "a.pt")
        raise CheckpointError("of another model")

    monkeypatch.setattr("mm_ldlm.extras.foreign_checkpoints.converting.refuse_other_model", refuse)
    assert problems(runs, init_from="a.pt") == ["parameter 'training.init_from': of another model"]
