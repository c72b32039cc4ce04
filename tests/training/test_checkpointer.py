"""What a checkpoint restores, and what is refused: poison, another model, half an optimizer, hostile numbers."""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.training import task

from mm_ldlm.core import CheckpointError
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.training import loop
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import MARKER, pointed
from mm_ldlm.training.checkpoints.weights import identity_of

NAME = "step-00000004"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of four steps."""
    root = tmp_path_factory.mktemp("trained")
    loop.train(task.built(task.spec(max_steps=4), root))
    return root


@pytest.fixture
def saved(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint of four steps, in a copy of the run."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run/checkpoints" / NAME


def resumed(root: Path, **spec: Any) -> loop.Run:
    run = task.built(task.spec(**{"max_steps": 4, **spec}), root)
    run.checkpointer.resume("auto", root)
    return run


def rewrite(file: Path, change: Callable[[Any], None]) -> None:
    """Change a file of a checkpoint, and renew its entry in the marker."""
    if file.suffix == ".json":
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
    else:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
    marker = json.loads((file.parent / MARKER).read_text())
    marker["files"][file.name] = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
    (file.parent / MARKER).write_text(json.dumps(marker))


def test_a_run_is_identified_by_every_store_that_its_outputs_depend_on() -> None:
    objective: Any = SimpleNamespace(kind="mine", identity={}, stores=("clusters",))
    own = dict.fromkeys(("tokenizer", "normaliser", "encoder", "clusters", "sounds_normaliser"), "digest")
    found = identity_of(
        model=task.spec().model, shape=task.SHAPE, objective=objective, fingerprints=own | {"index": "x"}
    )
    assert found.keys() == {"model", "shape", "objective", *own}
    assert own.items() <= found.items()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("file", ["model", "ema", "optimizer"])
def test_pitfall_39_everything_that_is_restored_is_tested(
    saved: Path, tmp_path: Path, file: str, value: float, refuses: Callable[..., Any]
) -> None:
    """One entry of each kind of tensor in turn: weights, averages, both moments, the step of the optimizer."""
    path = saved / f"{file}.safetensors"
    names = load_file(path)
    kinds = {name.rpartition("/")[2]: name for name in names}
    chosen = list(kinds.values()) if file == "optimizer" else [next(iter(names))]
    original = path.read_bytes(), (saved / MARKER).read_bytes()
    for name in chosen:
        rewrite(path, lambda tensors, name=name: tensors[name].view(-1)[:1].fill_(value))
        with refuses(CheckpointError, file, name):
            resumed(tmp_path)
        path.write_bytes(original[0])
        (saved / MARKER).write_bytes(original[1])
    assert resumed(tmp_path).learner.state.step == 4


HOSTILE: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a moment lacks": ("optimizer.safetensors", lambda t: t.pop(next(k for k in t if k.endswith("exp_avg")))),
    "a moment of another shape": ("optimizer.safetensors", lambda t: t.update({k: torch.zeros(3) for k in [*t][:1]})),
    "moments of whole numbers": (
        "optimizer.safetensors",
        lambda t: t.update({k: t[k].int() for k in t if k.endswith("exp_avg")}),
    ),
    "complex moments": ("optimizer.safetensors", lambda t: t.update({k: t[k].to(torch.complex64) for k in [*t][:1]})),
    "a complex weight of NaN": (
        "model.safetensors",
        lambda t: t.update({k: t[k] * complex(torch.nan, 0) for k in [*t][:1]}),
    ),
    "a parameter of nobody": ("optimizer.safetensors", lambda t: t.update({"adamw/nobody/exp_avg": torch.zeros(1)})),
    "a weight of another shape": (
        "model.safetensors",
        lambda t: t.update({k: t[k].T.contiguous() for k in t if t[k].ndim == 2}),
    ),
    "a weight lacks": ("model.safetensors", lambda t: t.pop(next(iter(t)))),
    "a weight too many": ("model.safetensors", lambda t: t.update({"more": torch.zeros(1)})),
    "a negative count": ("training_state.json", lambda d: d["state"].update(step=-1)),
    "a count that is a text": ("training_state.json", lambda d: d["state"].update(epoch="1")),
    "a count that is true": ("training_state.json", lambda d: d["state"].update(tokens=True)),
    "no guard": ("training_state.json", lambda d: d.pop("guard")),
    "a window of texts": ("training_state.json", lambda d: d["guard"].update(windows={"a": ["x"]})),
    "no identity": ("training_state.json", lambda d: d.pop("identity")),
    "another model": ("training_state.json", lambda d: d["identity"]["model"].update(depth=3)),
    "another tokenizer": ("training_state.json", lambda d: d["identity"].update(tokenizer="other")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_state_that_does_not_fit_is_refused(
    saved: Path, tmp_path: Path, case: str, refuses: Callable[..., Any]
) -> None:
    file, change = HOSTILE[case]
    rewrite(saved / file, change)
    with refuses(CheckpointError, NAME):
        resumed(tmp_path)


def test_a_session_continues_its_run_another_one_or_none(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    shutil.copytree(saved, tmp_path / "copy/checkpoints" / NAME)
    run, other = task.built(task.spec(), tmp_path), task.built(task.spec(run_name="other"), tmp_path)
    assert run.checkpointer.resume("auto", tmp_path) == run.checkpointer.resume("copy", tmp_path) == NAME
    assert run.checkpointer.resume("never", tmp_path) is None
    run.checkpointer.process = dataclasses.replace(run.checkpointer.process, attempt=1)
    assert run.checkpointer.resume("never", tmp_path) == NAME, "the launcher started the ranks again"
    assert other.checkpointer.resume("auto", tmp_path) is None
    assert other.checkpointer.resume(f"copy/checkpoints/{NAME}", tmp_path) == NAME
    assert other.learner.state.step == 4
    with pytest.raises(CheckpointError, match="nowhere"):
        other.checkpointer.resume("nowhere", tmp_path)


@pytest.mark.parametrize(("best_is", "expected"), [("min", 2), ("max", 4)])
def test_the_best_checkpoint_is_kept_by_its_metric(tmp_path: Path, best_is: Any, expected: int) -> None:
    checkpoint = {"every_steps": 1, "keep_last": 1, "best_metric": "validation/loss", "best_is": best_is}
    run = task.built(task.spec(max_steps=4, validate_every=1, checkpoint=checkpoint), tmp_path)
    values = iter([math.inf, 0.2, 0.3, 0.9])
    run.validate = lambda step: {"loss": next(values)}
    loop.train(run)
    best = pointed(run.checkpointer.directory, "best")
    assert best.name == f"step-{expected:08d}"
    assert {path.name for path in run.checkpointer.directory.glob("step-*")} == {best.name, NAME}
    assert run.tracker.of("best_unknown") == []


def test_a_checkpoint_that_was_not_written_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(directory: Path, step: int, **contents: Any) -> Path:
        if step == 2:
            raise OSError("full")
        return plain(directory, step, **contents)

    checkpoint, plain = {"every_steps": 1, "best_metric": "validation/loss", "background": True}, folder.write
    run = task.built(task.spec(max_steps=3, validate_every=1, checkpoint=checkpoint), tmp_path)
    values = iter([0.9, 0.2, 0.5])
    run.validate = lambda step: {"loss": next(values)}
    monkeypatch.setattr(folder, "write", write)
    loop.train(run)
    assert pointed(run.checkpointer.directory, "best") == run.checkpointer.directory / "step-00000003"


def test_checkpoints_are_due_by_steps_and_minutes(tmp_path: Path) -> None:
    run = task.built(task.spec(checkpoint={"every_steps": 5, "every_minutes": 1}), tmp_path)
    assert [step for step in range(1, 12) if run.checkpointer.due(step, False)] == [5, 10]
    assert run.checkpointer.due(1, True)
    assert not run.checkpointer.minutes_over()
    run.checkpointer._last_time -= 50
    assert not run.checkpointer.minutes_over()
    run.checkpointer._last_time -= 11
    assert run.checkpointer.minutes_over()
    assert run.checkpointer.save({}) == []
    assert not run.checkpointer.minutes_over()


@pytest.mark.parametrize("file", ["model", "ema", "optimizer"])
def test_one_tensor_of_any_file_that_is_not_finite_is_found_before_it_is_saved(file: str, tmp_path: Path) -> None:
    run = task.built(task.spec(max_steps=2), tmp_path)
    loop.train(run)
    name, value = next(iter(run.learner.tensors()[f"{file}.safetensors"].items()))
    value.data.view(-1)[0] = torch.nan
    assert run.checkpointer.save({}) == [f"{name} ({file}.safetensors)"]


def test_a_checkpoint_is_a_copy_of_the_moment(tmp_path: Path) -> None:
    run = task.built(task.spec(checkpoint={"background": True}), tmp_path)
    task.train_until(run, 2)
    before = task.held(run)
    assert run.checkpointer.save({}) == []
    for p in run.learner.root.parameters():
        p.data.zero_()
    run.checkpointer.wait()
    assert task.largest_difference(before, task.saved(tmp_path, 2)) == 0


def test_a_run_of_other_precision_or_without_averages_can_be_continued(saved: Path, tmp_path: Path) -> None:
    without = task.built(task.spec(max_steps=4, ema={"enabled": False}), tmp_path)
    assert without.checkpointer.restore(saved) == 4
    run = task.built(task.spec(max_steps=4, precision={"autocast": "bf16"}), tmp_path)
    assert run.checkpointer.restore(saved) == 4
    assert dataclasses.asdict(run.learner.state)["step"] == 4
