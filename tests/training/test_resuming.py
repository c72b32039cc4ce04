"""`training.resume` with an earlier checkpoint of the run: the run goes back, and loses nothing."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
from parts import Heard
from test_ranks import go

from mm_ldlm.app.parameters import check_files
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import CheckpointError, ConfigurationError
from mm_ldlm.training import resuming
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import CheckpointConfig, TrainingConfig
from mm_ldlm.training.jsonl import read_events, read_metrics
from mm_ldlm.training.session import run_session
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.worker import Result, train

FILES = ("model", "ema", "optimizer")
EVERY_TWO = {"every_steps": 2, "keep_last": 20, "background": False, "best_metric": "loss"}
BACK = {"resume": "run/checkpoints/step-00000004"}


def run(root: Path, *, pause_at: int | None = None, **settings: Any) -> Result:
    spec = helpers.spec(**{"checkpoint": EVERY_TWO, "model": {"depth": 1}, **settings})
    return train(spec, root=root, data=helpers.data(), pause_at=pause_at)


def steps(directory: Path) -> list[int]:
    return [folder.step_of(path) for path in folder.all_in(directory)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    run(root)
    return root


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_run_goes_back_to_the_named_checkpoint_and_keeps_the_later_ones(root: Path, finished: Path) -> None:
    result = run(root, **BACK)
    assert (result.ending, result.step) == ("finished", 10)
    assert read_events(root / "run/training_log.jsonl", "start")[-1]["resumed_from"] == "step-00000004"
    assert steps(root / "run/checkpoints") == [2, 4, 6, 8, 10]
    assert steps(root / "run/checkpoints.old-1") == [6, 8, 10]
    for name in FILES:
        before = helpers.tensors(finished / "run", 10, name)
        assert helpers.same_bits(before, helpers.tensors(root / "run", 10, name)), name
        aside = folder.tensors(root / "run/checkpoints.old-1/step-00000010", f"{name}.safetensors")
        assert helpers.same_bits(before, aside), name
    folder.find(root / "run/checkpoints.old-1", which="8")
    assert [line["step"] for line in read_metrics(root / "run/training_log.jsonl")] == list(range(1, 11))


def test_the_same_command_continues_and_other_parameters_go_back_again(root: Path) -> None:
    slower = {"optimizer": {"lr": 1e-4, "warmup_steps": 2}}
    assert run(root, pause_at=7, **BACK, **slower).step == 7
    result = run(root, pause_at=8, **BACK, **slower)
    starts = [event["resumed_from"] for event in read_events(root / "run/training_log.jsonl", "start")]
    assert starts == [None, "step-00000004", "step-00000007"]
    assert result.step == 8
    shutil.rmtree(root / "run/checkpoints/step-00000004")  # as retention does later
    assert run(root, pause_at=9, **BACK, **slower).step == 9
    parameters = {
        "training": parse(TrainingConfig, {"batch": {"examples": 4}, "max_steps": 200, **BACK}, at="training"),
        "model": helpers.spec().model,
    }
    check_files(parameters, read=(), runs=root)
    run(root, pause_at=8, resume="run/checkpoints/step-00000007")
    assert read_events(root / "run/training_log.jsonl", "start")[-1]["resumed_from"] == "step-00000007"
    assert steps(root / "run/checkpoints.old-2") == [8, 9]


def test_steps_that_a_run_left_behind_are_no_numbers_of_the_run(root: Path) -> None:
    run(root, pause_at=5, **BACK)
    assert [line["step"] for line in read_metrics(root / "run/training_log.jsonl")] == [1, 2, 3, 4, 5]
    (event,) = read_events(root / "run/training_log.jsonl", "went_back")
    assert event["step"] == 4
    assert event["moved"] == ["step-00000006", "step-00000008", "step-00000010"]
    assert event["to"] == "checkpoints.old-1"


def test_best_is_that_of_the_checkpoints_that_the_run_keeps(root: Path) -> None:
    directory = root / "run/checkpoints"
    losses = {step: folder.document(directory / folder.name_of(step), "training_state.json")["metrics"]["loss"]
              for step in steps(directory)}  # fmt: skip
    assert folder.pointer(directory, "best") == folder.name_of(min(losses, key=lambda step: losses[step]))
    folder.point(directory, "best", directory / "step-00000010")
    run(root, pause_at=4, **BACK)
    kept = {step: losses[step] for step in (2, 4)}
    best = min(kept, key=lambda step: kept[step])
    assert folder.pointer(directory, "best") == folder.name_of(best)
    assert folder.pointer(directory, "latest") == "step-00000004"
    result = run(root, **BACK)
    assert result.checkpoint is not None
    assert folder.document(result.checkpoint, "training_state.json")["state"]["best"] <= kept[best]


def test_a_restart_after_a_lost_rank_does_not_go_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    run(root, **BACK)
    assert read_events(root / "run/training_log.jsonl", "start")[-1]["resumed_from"] == "step-00000010"
    assert not (root / "run/checkpoints.old-1").exists()


def test_a_checkpoint_that_the_run_lacks_or_that_is_damaged_moves_nothing(root: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'training\.resume'.*no checkpoint of step 5; there are 2, 4, 6, 8, 10"):
        run(root, resume="run/checkpoints/step-00000005")
    spec = helpers.spec(resume="run/checkpoints/step-00000005")
    typed = {"training": spec.training, "model": spec.model}
    with pytest.raises(ConfigurationError, match="no checkpoint of step 5; there are 2, 4, 6, 8, 10"):
        check_files(typed, read=(), runs=root)
    (root / "run/checkpoints/step-00000004/model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"expected \d+ bytes in model.safetensors, found 5"):
        run(root, **BACK)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        run(root, resume="run/checkpoints/step-00000002", model={"depth": 2})
    assert steps(root / "run/checkpoints") == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("text", ["{", "[]", '{"step": "4"}', '{"step": 4}'])
def test_a_damaged_record_loses_no_checkpoint(text: str, root: Path) -> None:
    (root / "run/checkpoints/went_back.json").write_text(text)
    run(root, pause_at=4, **BACK)
    assert steps(root / "run/checkpoints") == [2, 4]
    assert steps(root / "run/checkpoints.old-1") == [6, 8, 10]


def test_a_finished_run_goes_back_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched: list[Path] = []

    def here(module: str, arguments: list[str], **options: Any) -> None:
        launched.append(Path(arguments[0]))
        train(TrainingSpec.read(Path(arguments[0])), root=Path(arguments[2]), data=helpers.data())

    monkeypatch.setattr("mm_ldlm.training.session.launch", here)
    spec = helpers.spec(checkpoint=EVERY_TWO, model={"depth": 1}, **BACK).to_dict()
    with caplog.at_level(logging.INFO):
        first = run_session(spec, root)
        second = run_session(spec, root)
    assert first == second
    assert first["step"] == 10
    assert len(launched) == 1
    assert "run run goes back to step-00000004; its later checkpoints (step-00000006, step-00000008" in caplog.text
    assert "already finished" in caplog.text


@pytest.mark.slow
def test_two_processes_go_back_together(tmp_path: Path) -> None:
    spec = {"checkpoint": EVERY_TWO}
    before = helpers.tensors(go(tmp_path, spec=spec), 10)
    after = go(tmp_path, spec={**spec, **BACK})
    assert read_events(after / "training_log.jsonl", "start")[-1]["resumed_from"] == "step-00000004"
    assert helpers.same_bits(before, helpers.tensors(after, 10))
    assert steps(after / "checkpoints.old-1") == [6, 8, 10]


def test_a_restart_after_a_lost_rank_continues_although_a_new_command_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "l"}.items():
        monkeypatch.setenv(name, value)
    for attempt, origin, old in ((0, None, []), (1, "step-00000002", []), (0, None, ["run.old-1"])):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        run(tmp_path, pause_at=2, resume="never", max_steps=4)
        assert read_events(tmp_path / "run/training_log.jsonl", "start")[-1]["resumed_from"] == origin
        assert sorted(path.name for path in tmp_path.glob("run.old-*")) == old


@pytest.mark.parametrize(("best_is", "name", "value"), [("min", "step-00000020", 1.0), ("max", "step-00000010", 3.0)])
def test_the_best_checkpoint_up_to_a_step(
    best_is: Any, name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {10: {"m": 3.0}, 20: {"m": 1.0}, 30: {"other": 0.0}, 40: {"m": 2.0}, 50: {"m": 9.0}, 60: {"m": 0.5}}
    monkeypatch.setattr(resuming.folder, "all_in", lambda path: [path / f"step-{step:08}" for step in metrics])
    monkeypatch.setattr(resuming.folder, "document", lambda path, file: {"metrics": metrics[folder.step_of(path)]})
    config = CheckpointConfig(best_metric="m", best_is=best_is)
    assert resuming._best(tmp_path, config, upto=40) == (name, value)
    assert resuming._best(tmp_path, config, upto=10) == ("step-00000010", 3.0), "the step itself counts"
    assert resuming._best(tmp_path, config, upto=5) == (None, None)
    assert [path.name for path in resuming.later(tmp_path / "step-00000040")] == ["step-00000050", "step-00000060"]


@pytest.mark.parametrize("is_main", [True, False])
def test_the_first_rank_alone_moves_checkpoints_and_pointers(
    is_main: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank restores and reads which are later; without a best metric of the earlier ones `best` goes."""
    for step in (2, 4, 6):
        folder.write(tmp_path / "checkpoints", step, folder.Contents({}, {"training_state.json": {"metrics": {}}}))
    directory = tmp_path / "checkpoints"
    folder.point(directory, "best", directory / folder.name_of(6))
    restored: list[Path] = []
    barriers: list[list[int]] = []
    monkeypatch.setattr(resuming.collectives, "barrier", lambda: barriers.append(steps(directory)))
    heard = Heard()
    state = SimpleNamespace(step=4, best=0.5)
    parts: Any = SimpleNamespace(
        checkpointer=SimpleNamespace(directory=directory, restore=restored.append), state=state, tracker=heard,
        process=SimpleNamespace(is_main=is_main),
    )  # fmt: skip
    spec = helpers.spec(checkpoint={"best_metric": "loss"})
    resuming._go_back(parts, spec, directory / folder.name_of(4))
    assert restored == [directory / folder.name_of(4)]
    assert state.best is None
    assert barriers == [[2, 4, 6], [2, 4] if is_main else [2, 4, 6]], "moved after every rank has listed them"
    assert steps(directory) == ([2, 4] if is_main else [2, 4, 6])
    assert (directory / "best").exists() is not is_main
    moved = {"moved": ["step-00000006"], "to": "checkpoints.old-1"}
    assert heard.events == ([(4, "went_back", moved)] if is_main else [])
    assert resuming.went_back(directory / folder.name_of(4)) is is_main
    assert resuming.went_back(directory / folder.name_of(4), fingerprint=spec.fingerprint) is is_main
    assert not resuming.went_back(directory / folder.name_of(4), fingerprint="another")
    assert not resuming.went_back(directory / folder.name_of(2))


def test_a_kill_while_checkpoints_are_moved_leaves_the_earlier_ones_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is moved first: at any time the rest is a run without a gap."""
    directory = tmp_path / "checkpoints"
    paths = [directory / f"step-0000000{step}" for step in (2, 4, 6)]
    for path in paths:
        path.mkdir(parents=True)
    plain, moved = Path.rename, list[str]()

    def rename(path: Path, target: Path) -> Path:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(path.name)
        return plain(path, target)

    (tmp_path / "checkpoints.old-1").mkdir()
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        resuming._move_aside(directory, paths)
    assert moved == ["step-00000006", "step-00000004"]
    assert [path.name for path in directory.iterdir()] == ["step-00000002"]
    assert sorted(path.name for path in (tmp_path / "checkpoints.old-2").iterdir()) == sorted(moved)
