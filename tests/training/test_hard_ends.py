"""Ends of a run that are nobody's wish: full disks, signals, damaged documents, weights without numbers."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch

from damage import damaged
from mm_ldlm.core.errors import CheckpointError, ConfigurationError, MMLDLMError, TrainingDiverged, WorkerFailed
from mm_ldlm.distributed import launch
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.reference import run_folder
from mm_ldlm.training.jsonl import JsonlTracker
from mm_ldlm.training.session import run_session
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.status import STATUS, read_failure, read_status
from mm_ldlm.training.worker import train


def test_a_learning_rate_that_is_far_too_high_is_diagnosed_as_such(tmp_path: Path) -> None:
    spec = helpers.spec(max_steps=30, optimizer={"lr": 1e6, "warmup_steps": 0}, guard={"max_rollbacks": 0})
    with pytest.raises(TrainingDiverged) as raised:
        train(spec, root=tmp_path, data=helpers.data())
    text = str(raised.value)
    assert "gradients are finite, but too large for float32: their norm is" in text
    assert "An earlier update made the weights too large: lower training.optimizer.lr" in text
    assert "devices" not in text


@pytest.mark.parametrize("file", ["model.safetensors", "ema.safetensors"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_checkpoint_without_numbers_is_refused_and_not_rolled_back_to(
    file: str, value: float, tmp_path: Path
) -> None:
    train(helpers.spec(max_steps=4, checkpoint={"every_steps": 2}), root=tmp_path, data=helpers.data())
    path = tmp_path / "run" / "checkpoints" / folder.name_of(4)
    tensors = {found.name: folder.tensors(path, found.name) for found in path.glob("*.safetensors")}
    next(iter(tensors[file].values())).view(-1)[0] = value
    documents = {found.name: folder.document(path, found.name) for found in path.glob("training_state.json")}
    folder.write(path.parent, 4, Contents(tensors, {**documents, "optimizer.json": {}}))
    with pytest.raises(CheckpointError, match=rf"step-00000004/{file}: expected finite weights, found NaN or infinity"):
        train(helpers.spec(max_steps=6), root=tmp_path, data=helpers.data())
    folder.remove(path)
    assert train(helpers.spec(max_steps=6), root=tmp_path, data=helpers.data()).step == 6


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_outside_a_checkpoint_ends_the_run_with_its_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JsonlTracker._write

    def write(self: Any, line: Any) -> None:
        if line.get("step", 0) >= 3:
            raise OSError(number, "why", str(tmp_path / "run" / "training_log.jsonl"))
        real(self, line)

    monkeypatch.setattr(JsonlTracker, "_write", write)
    with pytest.raises(WorkerFailed, match=r"(disk is full|permission to read and write) at .*training_log\.jsonl"):
        train(helpers.spec(max_steps=6), root=tmp_path, data=helpers.data())
    monkeypatch.undo()
    assert train(helpers.spec(max_steps=6), root=tmp_path, data=helpers.data()).ending == "finished"


def test_sigterm_ends_with_143_and_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch.distributed import launcher
    from torch.distributed.elastic.multiprocessing import SignalException

    class Elastic:
        def __init__(self, *unused: Any) -> None: ...

        def __call__(self, *unused: Any) -> None:
            raise SignalException("ended", sigval=signal.SIGTERM)

    monkeypatch.setattr(launcher.api, "elastic_launch", Elastic)
    with pytest.raises(SystemExit) as ended:
        launch.launch("none", [], config=launch.LaunchConfig(), log_directory=tmp_path / "logs")
    assert ended.value.code == 143
    with pytest.raises(SystemExit) as ended:
        run_session(helpers.spec().to_dict(), tmp_path)
    assert ended.value.code == 143
    assert "was interrupted before its first checkpoint. The same command starts again" in caplog.text


def test_every_damaged_status_failure_and_reference_is_refused(tmp_path: Path) -> None:
    document = {"status": "finished", "step": 3, "time": 1.5, "metrics": {"loss": 1.0}}
    for change, other in damaged(document):
        (tmp_path / STATUS).write_text(json.dumps(other))
        try:
            found = read_status(tmp_path)
        except CheckpointError:
            continue
        assert isinstance(found["status"], str), change
        assert isinstance(found["step"], int), change
        assert isinstance(found.get("metrics", {}), dict), change
    for change, other in damaged({"launch": "a", "text": "why"}):
        (tmp_path / "failure.json").write_text(json.dumps(other))
        assert isinstance(read_failure(tmp_path, "a"), str | None), change
    for change, other in damaged({"name": "x", "step": 3}):
        try:
            assert run_folder(tmp_path, other).parent == tmp_path, change
        except CheckpointError:
            continue
    with pytest.raises(CheckpointError, match=r"run\.json"):
        run_folder(tmp_path, {"name": "a\0b"})


def test_every_damaged_spec_is_refused_or_read() -> None:
    refused = 0
    for change, other in damaged(helpers.spec().to_dict()):
        try:
            TrainingSpec.from_dict(other)
        except ConfigurationError:
            refused += 1
        except MMLDLMError as error:  # pragma: no cover
            pytest.fail(f"{change}: {type(error).__name__}")
    assert refused > 500


def test_weights_without_numbers_initialise_nothing(tmp_path: Path) -> None:
    train(helpers.spec(max_steps=2, run_name="first"), root=tmp_path, data=helpers.data())
    path = folder.find(tmp_path / "first")
    tensors = {found.name: folder.tensors(path, found.name) for found in path.glob("*.safetensors")}
    next(iter(tensors["ema.safetensors"].values())).fill_(torch.nan)
    folder.write(
        path.parent, 2, Contents(tensors, {"training_state.json": folder.document(path, "training_state.json")})
    )
    with pytest.raises(CheckpointError, match=r"Choose another checkpoint for training\.init_from"):
        train(helpers.spec(init_from="first"), root=tmp_path, data=helpers.data())
