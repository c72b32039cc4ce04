"""Checkpoints by hand: what is saved, what differs, which run is newest, and what a name stands for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mm_ldlm.training.checkpoints.writer import Writer
from torch import nn

from mm_ldlm.core.errors import CheckpointError, EvaluationError
from mm_ldlm.models.base import DataShape
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.folder import Contents
from mm_ldlm.training.checkpoints.identity import differences, identity_of
from mm_ldlm.training.checkpoints.provenance import made_by, refuse_other, weights_in, weights_of
from mm_ldlm.training.checkpoints.reference import (
    chosen_run,
    results_of,
    run_folder,
    runs_of,
    split_path,
    weights_folder,
)
from mm_ldlm.training.checkpoints.weights import load_tensors, persistent_buffers, refuse_non_finite, saved_tensors


class Module(nn.Module):
    """A shared parameter, a frozen one, a buffer that is kept and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2, bias=False)
        self.two = nn.Linear(2, 2, bias=False)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("kept", torch.arange(2.0))
        self.register_buffer("made", torch.zeros(1), persistent=False)


def test_parameters_once_and_persistent_buffers_are_saved() -> None:
    assert set(saved_tensors(Module())) == {"one.weight", "frozen", "kept"}
    assert set(persistent_buffers(Module())) == {"kept"}


@pytest.mark.parametrize(
    ("change", "words"),
    [({"one.weight": None}, r"Missing: \['one.weight'\]"), ({"more": torch.ones(1)}, r"Unknown: \['more'\]"),
     ({"frozen": torch.ones(4)}, r"frozen: expected \(3,\), found \(4,\)"), ({}, None)],
)  # fmt: skip
def test_all_tensors_fit_or_none_is_loaded(change: dict[str, Any], words: str | None) -> None:
    module = Module()
    before = {name: value.clone() for name, value in saved_tensors(module).items()}
    given = {name: value + 5 for name, value in before.items()} | change
    given = {name: value for name, value in given.items() if value is not None}
    if words is None:
        load_tensors(saved_tensors(module), given, Path("f"))
        assert all(torch.equal(value, given[name]) for name, value in saved_tensors(module).items())
        return
    with pytest.raises(CheckpointError, match=words):
        load_tensors(saved_tensors(module), given, Path("f"))
    assert all(torch.equal(value, before[name]) for name, value in saved_tensors(module).items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_without_numbers_are_named(bad: float) -> None:
    tensors = {"whole": torch.ones(2), "numbers": torch.tensor([1, 2]), "bad": torch.tensor([1.0, bad])}
    with pytest.raises(CheckpointError, match=r"in 1 of 3 tensors, the first of them bad\. Remedy"):
        refuse_non_finite(tensors, Path("f"), remedy="Remedy")
    refuse_non_finite({name: tensors[name] for name in ("whole", "numbers")}, Path("f"), remedy="")


def test_the_identity_names_everything_that_weights_depend_on() -> None:
    shape = DataShape(vocab_size=5, pad_id=3, mask_id=4, max_length=7, latent_dim=2)
    objective = SimpleNamespace(kind="o", identity={"process": "p"}, stores=("token_clusters",))
    given = {"tokenizer": "t", "normaliser": "n", "encoder": "e", "token_clusters": "c", "records": "r",
             "image_normaliser": "i"}  # fmt: skip
    found = identity_of(model={"kind": "m"}, shape=shape, objective=objective, fingerprints=given)
    expected = {
        "model": {"kind": "m"}, "tokenizer": "t", "normaliser": "n", "encoder": "e", "token_clusters": "c",
        "image_normaliser": "i", "objective": {"kind": "o", "process": "p"},
    }  # fmt: skip
    assert {key: value for key, value in found.items() if key != "shape"} == expected
    assert (found["shape"]["vocab_size"], found["shape"]["latent_dim"]) == (5, 2)
    less = identity_of(model={"kind": "m"}, shape=shape, objective=objective, fingerprints={})
    assert (less["tokenizer"], less["token_clusters"], "image_normaliser" in less) == ("", "", False)


def test_every_leaf_that_differs_is_listed() -> None:
    theirs = {"a": {"x": 1, "y": 2}, "b": 3, "gone": 4}
    mine = {"a": {"x": 1, "y": 5}, "b": "3", "new": {"z": None}}
    assert differences(theirs, mine) == [
        "a.y: checkpoint has 2, this run 5", "b: checkpoint has 3, this run '3'",
        "gone: checkpoint has 4, this run 'nothing'",
    ]  # fmt: skip
    assert differences(theirs, theirs) == []


def checkpoint(runs: Path, run: str, step: int, *, time: int | None = None) -> Path:
    path = folder.write(
        runs / run / "checkpoints", step, Contents({"model.safetensors": {"w": torch.ones(1) * step}}, {"a.json": {}})
    )
    if time is not None:
        os.utime(path / "COMPLETE", (time, time))
    return path


def test_the_newest_run_is_the_one_that_saved_last(tmp_path: Path) -> None:
    checkpoint(tmp_path, "z", 900, time=1_000)
    checkpoint(tmp_path, "a", 5, time=3_000)
    checkpoint(tmp_path, "m", 70, time=2_000)
    assert folder.newest_run(tmp_path) == tmp_path / "a"
    assert folder.newest_run(tmp_path / "z") == tmp_path / "z"
    assert folder.newest_run(tmp_path / "z" / "checkpoints" / "step-00000900").name == "step-00000900"


def test_checkpoints_are_found_by_step_pointer_and_age(tmp_path: Path) -> None:
    for step in (5, 10, 1000, 20):
        checkpoint(tmp_path, "r", step)
    directory = tmp_path / "r" / "checkpoints"
    folder.point(directory, "best", directory / folder.name_of(10))
    assert [folder.step_of(path) for path in folder.all_in(directory)] == [5, 10, 20, 1000]
    found = {which: folder.find(tmp_path / "r", which=which) for which in ("latest", "best", "20", "0005")}
    assert {which: folder.step_of(path) for which, path in found.items()} == {
        "latest": 1000, "best": 10, "20": 20, "0005": 5
    }  # fmt: skip
    assert folder.find(found["20"], which="latest") == found["20"], "a checkpoint is itself"
    assert [folder.step_of(path) for path in folder.all_in(directory)[-1:]] == [1000]


@pytest.mark.parametrize(
    ("last", "every", "left"),
    [(1, None, [20, 60]), (2, None, [20, 50, 60]), (1, 30, [20, 30, 60]), (9, None, [10, 20, 30, 40, 50, 60])],
)
def test_retention_keeps_the_last_the_best_and_the_multiples(
    last: int, every: int | None, left: list[int], tmp_path: Path
) -> None:
    for step in (10, 20, 30, 40, 50, 60):
        checkpoint(tmp_path, "r", step)
    directory = tmp_path / "r" / "checkpoints"
    folder.point(directory, "best", directory / folder.name_of(20))
    removed = folder.apply_retention(directory, last=last, every=every)
    assert [folder.step_of(path) for path in folder.all_in(directory)] == left
    assert sorted([*removed, *left]) == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("background", [True, False])
def test_the_writer_points_reports_and_keeps_its_error(background: bool, tmp_path: Path) -> None:
    reported: list[tuple[int, Any]] = []
    taken: list[float] = []

    def report(step: int, seconds: float, error: Any) -> None:
        reported.append((step, error))
        taken.append(seconds)

    writer = Writer(
        tmp_path, keep_last=1, keep_every=None, background=background,
        report=report,
    )  # fmt: skip
    contents = Contents({"model.safetensors": {"w": torch.ones(2)}}, {})
    for step, best in ((1, True), (2, False), (3, False)):
        writer.save(step, contents, best=best)
    writer.wait()
    assert (folder.pointer(tmp_path, "latest"), folder.pointer(tmp_path, "best")) == ("step-00000003", "step-00000001")
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [1, 3]
    writer.save(4, Contents({}, {}, {"gone": tmp_path / "nowhere"}), best=True)
    writer.wait()
    assert writer.failed is not None
    assert [(step, error is not None) for step, error in reported] == [(1, False), (2, False), (3, False), (4, True)]
    assert folder.pointer(tmp_path, "best") == "step-00000001"
    writer.save(5, contents, best=False)
    writer.wait()
    assert writer.failed is None
    assert all(0 < seconds < 60 for seconds in taken), "of this checkpoint alone"
    writer.save(6, contents, best=True)
    writer.wait()
    assert [folder.step_of(path) for path in folder.all_in(tmp_path)] == [6], "the former best is not kept"


# -- provenance and references ------------------------------------------------------------------------------------


def test_each_part_of_a_provenance_distinguishes_two_results(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "run-a", 7)
    mine = weights_of(path, use_ema=True)
    assert (mine["run"], mine["checkpoint"], mine["weights"], len(mine["digest"])) == (
        "run-a",
        "step-00000007",
        "last",
        32,
    )
    whole = made_by(mine, parameters={"p": 1}, seed=3)
    assert whole == {**mine, "parameters": {"p": 1}, "seed": 3}
    assert weights_in(whole) == mine
    refuse_other(whole, mine, what="x", remedy="")
    for key in mine:
        other = {**whole, key: "other"}
        with pytest.raises(EvaluationError, match=r"x: expected results of run run-a.* Do it"):
            refuse_other(other, mine, what="x", remedy="Do it")
        assert weights_in({name: value for name, value in whole.items() if name != key}) is None
    assert weights_of(checkpoint(tmp_path, "run-a", 8), use_ema=True)["digest"] != mine["digest"]
    (path / "ema.safetensors").touch()
    assert [weights_of(path, use_ema=use)["weights"] for use in (True, False)] == ["averaged", "last"]


def test_references_name_a_run_or_its_checkpoint(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    checkpoint(runs, "run-a", 7)
    last = checkpoint(runs, "run-a", 12)
    (runs / "run-a" / "config.json").write_text("{}")
    assert run_folder(runs, {"name": "run-a"}) == runs / "run-a"
    assert weights_folder(runs, {"name": "run-a", "chosen": None}) == runs / "run-a"
    assert weights_folder(runs, {"name": "run-a", "chosen": "step-00000007"}) == last.with_name("step-00000007")
    for bad in ({}, {"name": ".."}, {"name": "a/b"}, {"name": ""}, "run-a"):
        with pytest.raises(CheckpointError, match=r"expected the name of a folder"):
            run_folder(runs, bad)
    whole, one = chosen_run(str(runs / "run-a")), chosen_run(str(last.with_name("step-00000007")))
    assert whole == {
        "name": "run-a", "path": str(runs / "run-a"), "step": 12, "checkpoint": "step-00000012", "metrics": {},
        "chosen": None,
    }  # fmt: skip
    assert (one["step"], one["checkpoint"], one["chosen"]) == (7, "step-00000007", "step-00000007")
    assert split_path(last) == (runs / "run-a", "step-00000012")
    assert split_path(runs / "run-a" / "checkpoints") == (runs / "run-a", None)
    assert split_path(runs / "run-a") == (runs / "run-a", None)
    assert runs_of("own", str(last)) == str(runs)
    assert (runs_of("own", None), runs_of("own", "")) == ("own", "own")
    own, other = results_of("results", str(runs / "run-a")), results_of("results", str(last))
    assert own.startswith("results/other_runs/run-a-")
    assert other.startswith("results/other_runs/run-a-step-00000012-")
    assert results_of("results", None) == "results"
    assert len({own, other, results_of("results", str(tmp_path / "more" / "run-a"))}) == 3
