"""The less usual checkpoint: under another name, written twice, half removed, behind a link, of another training."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mm_ldlm.training.checkpoints.writer import Writer

from mm_ldlm.core.config import parse_kind, to_dict
from mm_ldlm.core.errors import CheckpointError, EvaluationError
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.converting import Names, _fitted, rename
from mm_ldlm.extras.foreign_checkpoints.formats import ROUNDING
from mm_ldlm.models.registry import MODELS
from mm_ldlm.training.checkpoints import folder, identity
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.provenance import refuse_other, weights_of
from mm_ldlm.training.checkpoints.reference import chosen_run, config_of


def contents(value: float = 1.0, **documents: Any) -> Contents:
    return Contents({"model.safetensors": {"w": torch.full((2,), value)}}, {"a.json": {"value": value}, **documents})


# -- runs by their path ------------------------------------------------------------------------------------------------


def run_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / "checkpoints" / name).mkdir(parents=True)
        (path / "checkpoints" / name / "COMPLETE").touch()
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"model": {"kind": "m"}, "objective": {"kind": "o"}, "seed": 7}')
    return path


def test_a_run_of_copies_alone_has_a_newest_checkpoint_and_no_step(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "copy-1", "copy-9", "copy-5")
    assert chosen_run(str(run)) == {
        "name": "run", "path": str(run), "checkpoint": "copy-9", "metrics": {}, "chosen": None,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"copy-2 is not complete here\. Choose one of: copy-1, copy-5, copy-9\."):
        chosen_run(str(run / "checkpoints" / "copy-2"))


def test_a_wrong_path_is_answered_with_the_nearest_run_or_the_first_three(tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma", "delta"):
        run_of(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"Did you mean '{tmp_path / 'gamma'}'\?"):
        chosen_run(str(tmp_path / "gama"))
    with pytest.raises(CheckpointError) as error:
        chosen_run(str(tmp_path / "something else"))
    first = " or ".join(f"'{tmp_path / name}'" for name in ("alpha", "beta", "delta"))
    assert str(error.value).endswith(f"Did you mean {first}?")


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/step-00000005"])
def test_the_configuration_is_that_of_the_run_of_a_checkpoint(below: str, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "step-00000005")
    assert config_of(str(run / below))["seed"] == 7
    for content, words in (
        ("{", "not readable as JSON"), ("[]", "expected the model and the objective of a run"),
        ('{"model": {}}', "expected the model and the objective"), ('{"objective": {}}', "expected the model and the"),
    ):  # fmt: skip
        (run / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=rf"run/config\.json: {words}"):
            config_of(str(run / below))


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_a_step_that_exists_replaces_it(tmp_path: Path) -> None:
    folder.write(tmp_path, 5, contents(1.0, **{"more.json": {}}))
    path = folder.write(tmp_path, 5, contents(2.0))
    assert folder.find(tmp_path) == path
    assert folder.document(path, "a.json") == {"value": 2.0}
    assert folder.tensors(path, "model.safetensors")["w"].tolist() == [2.0, 2.0]
    assert sorted(file.name for file in path.iterdir()) == ["COMPLETE", "a.json", "model.safetensors"]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert json.loads((path / "COMPLETE").read_text())["step"] == 5


def test_a_removal_that_is_interrupted_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        folder.write(tmp_path, step, contents())

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.apply_retention(tmp_path, last=1, every=None)
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [2], "its marker is removed first"
    assert (tmp_path / "step-00000001" / "model.safetensors").is_file()


def test_retention_goes_on_where_best_names_no_checkpoint_of_the_run(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder.write(tmp_path, step, contents())
    (tmp_path / "best").write_text("../step-00000001\n")
    assert folder.apply_retention(tmp_path, last=1, every=None) == [1, 2]


def test_where_every_checkpoint_is_damaged_each_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        (folder.write(tmp_path, step, contents()) / "a.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"no complete checkpoint here\. Damaged: .*2: a\.json is missing\.; .*1: a"
    ):
        folder.find(tmp_path)


def test_checkpoints_are_written_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits for the first, also where both are written in the background."""
    real, at_once, most = folder.write, [0], [0]

    def write(*given: Any) -> Path:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        path = real(*given)
        at_once[0] -= 1
        return path

    monkeypatch.setattr(folder, "write", write)
    told: list[int] = []
    writer = Writer(tmp_path, keep_last=9, keep_every=None, background=True, report=lambda step, *_: told.append(step))
    for step in (3, 1, 2):
        writer.save(step, contents(), best=False)
    writer.wait()
    assert (most, told) == ([1], [3, 1, 2])
    assert folder.pointer(tmp_path, "latest") == "step-00000002", "that which was saved last"


def test_a_pointer_to_a_checkpoint_that_was_removed_is_none(tmp_path: Path) -> None:
    for step in (1, 2):
        folder.point(tmp_path, "best", folder.write(tmp_path, step, contents()))
    assert folder.pointer(tmp_path, "best") == "step-00000002"
    folder.remove(tmp_path / "step-00000002")
    assert (folder.pointer(tmp_path, "best"), folder.pointer(tmp_path, "latest")) == (None, None)
    with pytest.raises(CheckpointError, match="there is no `best` checkpoint"):
        folder.find(tmp_path, which="best")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000001"]


@pytest.mark.parametrize("inside", [True, False])
def test_a_checkpoint_behind_a_link_is_one_of_this_run_only_inside_of_it(inside: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder.write(run, 5, contents())
    elsewhere = folder.write(tmp_path / "other", 9, contents())
    target = shutil.move(elsewhere, run / "kept") if inside else elsewhere
    (run / "step-00000009").symlink_to(target)
    newest, damaged = folder.newest_whole(run)
    assert newest is not None
    assert newest.name == ("step-00000009" if inside else "step-00000005")
    assert len(damaged) == (not inside)
    if not inside:
        assert "expected the name of a checkpoint of this run, but" in damaged[0]
        assert "symbolic link that leads out of the folder. Correct or remove the link" in damaged[0]
        for which in ("9", "latest"):
            with pytest.raises(CheckpointError, match="leads out of the folder"):
                folder.find(run, which=which)


def test_an_error_of_the_file_system_is_kept_and_what_was_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    writer = Writer(
        tmp_path, keep_last=1, keep_every=None, background=False, report=lambda *given: reported.append(given)
    )
    writer.save(1, contents(), best=True)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder, "point", full)
        writer.save(2, contents(), best=True)
    assert isinstance(writer.failed, CheckpointError)
    assert "No space left on device" in str(writer.failed)
    assert [(step, error) for step, _, error in reported] == [(1, None), (2, writer.failed)]
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [1, 2], "nothing is removed after a failure"
    assert folder.pointer(tmp_path, "latest") == "step-00000001"


# -- whose weights -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_outside_of_a_run_has_the_name_of_its_folder(tmp_path: Path) -> None:
    path = folder.write(tmp_path / "archive", 5, contents())
    assert weights_of(path, use_ema=False)["run"] == "archive"
    path = folder.write(tmp_path / "run-a" / "checkpoints", 5, contents())
    assert weights_of(path, use_ema=False)["run"] == "run-a"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "other"}, r"those of an earlier training of that name \(run r, c, last weights\)\. Do it"),
        ({"run": "s"}, r"expected results of run r, c, last weights, found those of run s, c, last weights\. Do it"),
        ({"weights": "averaged"}, r"found those of run r, c, averaged weights"),
        ({"checkpoint": "e", "digest": "other"}, r"found those of run r, e, last weights"),
        (None, r"found those of weights that it does not name\. Do it"),
    ],
)
def test_results_of_other_weights_are_described(change: Any, words: str) -> None:
    mine = {"run": "r", "checkpoint": "c", "digest": "d", "weights": "last"}
    with pytest.raises(EvaluationError, match=f"metrics: .*{words}"):
        refuse_other(None if change is None else mine | change, mine, what="metrics", remedy="Do it.")


@pytest.mark.parametrize("model", [{"kind": "of another version", "dim": 8}, None, "dit"])
def test_a_model_that_this_version_does_not_know_is_compared_as_it_is(model: Any) -> None:
    mine = {"model": to_dict(parse_kind(MODELS, {"kind": "dit"}, at="model")), "tokenizer": "t"}
    theirs = {"tokenizer": "t"} if model is None else {"model": model, "tokenizer": "t"}
    with pytest.raises(
        CheckpointError, match=r"(?s)^c belongs to another model:\n  model.*checkpoint has .*\nDo it\.$"
    ):
        identity.refuse_other(mine, theirs, Path("c"), remedy="Do it.")


# -- other trainers ----------------------------------------------------------------------------------------------------


def test_what_is_exported_is_read_again_without_its_prefix(tmp_path: Path) -> None:
    tensors = {"model.a.weight": torch.ones(2), "b.model.c": torch.zeros(3)}
    legacy.write(tmp_path, tensors, {"step": 7, "seed": 1})
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == {"a.weight", "b.model.c"}
    found = legacy.read(tmp_path)
    assert ({name: len(value) for name, value in found.tensors.items()}, found.step) == (
        {"a.weight": 2, "b.model.c": 3},
        7,
    )
    assert json.loads((tmp_path / "training_state.json").read_text()) == {"step": 7, "seed": 1}


@pytest.mark.parametrize(
    ("content", "step"),
    [({"step": 3, "global_step": 9}, 3), ({"global_step": 9}, 9), ({"step": -1, "global_step": 9}, 9),
     ({"step": True}, None), ({"step": 0}, 0), ({}, None)],
)  # fmt: skip
def test_the_step_is_the_first_whole_number_of_its_keys(content: Any, step: int | None, tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.ones(1)}, **content}, tmp_path / "model.pt")
    assert legacy.read(tmp_path).step == step


@pytest.mark.parametrize("suffix", legacy.SUFFIXES)
def test_a_file_of_another_trainer_exists_and_is_no_folder(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    assert not legacy.is_legacy(path)
    path.mkdir()
    assert not legacy.is_legacy(path)
    path.rmdir()
    path.touch()
    assert legacy.is_legacy(path)
    assert not legacy.is_legacy(tmp_path)
    assert not legacy.is_legacy(path.rename(tmp_path / "weights.txt"))


def test_of_two_entries_of_a_mapping_the_first_that_fits_counts() -> None:
    found, targets = {"a.w": torch.ones(1), "b.w": torch.zeros(1)}, {"x": torch.Size([1]), "c.w": torch.Size([1])}
    made = rename(found, targets, Names({"a.w": "x", "*.w": "c.w"}), source=Path("c"))
    assert {name: value.item() for name, value in made.tensors.items()} == {"x": 1.0, "c.w": 0.0}
    with pytest.raises(CheckpointError, match=r"'a\.w': no such name in the checkpoint"):
        rename(found, targets, Names({"*.w": "c.w", "a.w": "x"}), source=Path("c"))


@pytest.mark.parametrize(
    ("name", "plain"),
    [("module.model.backbone._orig_mod.a.b", "a.b"), ("models.a", "models.a"), ("a.model.b", "a.model.b"),
     ("model.", ""), ("backbone.layer.0", "layer.0")],
)  # fmt: skip
def test_prefixes_of_wrappers_are_removed_in_any_order(name: str, plain: str) -> None:
    assert legacy.plain_name(name) == plain


@pytest.mark.parametrize(
    ("rows", "added", "kept"),
    [(10, 0, 10), (10 + ROUNDING - 1, 0, 10), (10 + ROUNDING, 0, None), (9, 1, 9), (8, 2, 8), (8, 1, None),
     (9, 0, None), (11, 2, 10)],
)  # fmt: skip
def test_rows_are_cut_by_rounding_and_added_up_to_their_number(rows: int, added: int, kept: int | None) -> None:
    for value in (torch.arange(1.0, rows + 1), torch.arange(1.0, rows + 1)[:, None].expand(rows, 3)):
        target = torch.Size([10, *value.shape[1:]])
        if kept is None:
            with pytest.raises(CheckpointError, match=rf"expected 10 tokens in x, or up to 127 more .* found {rows}"):
                _fitted(value, target, name="x", added=added, source=Path("c"))
            continue
        found = _fitted(value, target, name="x", added=added, source=Path("c"))
        assert found.shape == target
        assert torch.equal(found[:kept], value[:kept])
        assert set(found[kept:].flatten().tolist()) <= {-1e4 if value.ndim == 1 else 0.0}


def test_of_many_faults_of_a_mapping_eight_are_listed() -> None:
    found = {f"theirs{number:02d}": torch.ones(1) for number in range(11)} | {"ids": torch.ones(1, dtype=torch.int64)}
    targets = {"ours": torch.Size([1]), "numbers": torch.Size([1])}
    with pytest.raises(CheckpointError) as error:
        rename(found, targets, Names({"ids": "numbers"}), source=Path("c"))
    listed = [f"theirs{number:02d}" in str(error.value) for number in range(11)]
    assert listed == [True] * 8 + [False] * 3
    assert "; and 5 more. Correct the mapping" in str(error.value), "three names, a type, and the missing parameters"
