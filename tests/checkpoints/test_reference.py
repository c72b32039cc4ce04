from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training.checkpoints.reference import (
    chosen_run,
    results_of,
    run_folder,
    runs_of,
    split_path,
    weights_folder,
)


def test_a_run_is_a_folder_beside_the_others() -> None:
    assert run_folder(Path("runs"), {"name": "run-1"}) == Path("runs/run-1")


@pytest.mark.parametrize(
    "reference", [{"name": "../../x"}, {"name": ".."}, {"name": ""}, {"name": "/x"}, {}, ["run-1"]]
)
def test_a_name_that_leads_elsewhere_is_refused(reference: Any) -> None:
    with pytest.raises(CheckpointError, match=r"expected the name of a folder in runs in run\.json"):
        run_folder(Path("runs"), reference)


def make_run(folder: Path, *steps: int) -> Path:
    for step in steps:
        checkpoint = folder / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "COMPLETE").write_text("{}")
    (folder / "config.json").write_text("{}")
    return folder


def test_the_path_of_a_run_or_of_a_checkpoint_chooses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs" / "run-1", 5, 10)
    newest = {"name": "run-1", "step": 10, "checkpoint": "step-00000010", "metrics": {}, "chosen": None}
    assert chosen_run(str(run)) == {**newest, "path": str(run)}
    assert chosen_run(f"{run}/checkpoints/")["chosen"] is None
    early = chosen_run(str(run / "checkpoints" / "step-00000005"))
    assert (early["step"], early["chosen"]) == (5, "step-00000005")
    assert weights_folder(tmp_path / "runs", early) == run / "checkpoints" / "step-00000005"
    assert weights_folder(tmp_path / "runs", newest) == run
    monkeypatch.chdir(run)
    assert split_path("checkpoints/step-00000005") == (run, "step-00000005")
    assert chosen_run(".")["name"] == "run-1"
    with pytest.raises(CheckpointError, match="leads out of"):
        weights_folder(tmp_path / "runs", {**newest, "chosen": "../../x"})


def test_results_of_a_chosen_run_have_a_folder_of_their_own() -> None:
    assert (results_of("R", None), runs_of("R/runs", None)) == ("R", "R/runs")
    paths = ["/a/run-1", "/b/run-1", "/a/run-1/checkpoints/step-00000005", "/a/run-2"]
    folders = [results_of("R", path) for path in paths]
    assert len({*folders, "R"}) == 5
    assert all(folder.startswith("R/other_runs/run-") for folder in folders)
    assert results_of("R", os.path.relpath("/a/run-1")) == folders[0] == results_of("R", "/a/run-1/checkpoints")
    assert [runs_of("R/runs", path) for path in paths] == ["/a", "/b", "/a", "/a"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("runs/run-11", r"found '.*runs/run-11', where .* has no config\.json\. Did you mean '.*/runs/run-1'\?"),
        ("runs", r"where .*runs has no config\.json\. Did you mean '.*/runs/run-1'\?"),
        ("empty/of/runs", r"has no config\.json\. Correct the path\."),
        ("none/x", r"has no config\.json\. Correct the path\."),
        ("runs/run-1/checkpoints/step-00000006", r"step-00000006 is not complete .* one of: step-00000005\."),
        ("runs/empty", r"which has no complete checkpoint\. Train the run"),
        ("x" * 300, r"has no config\.json|name too long"),
    ],
)
def test_a_path_without_a_run_is_refused(tmp_path: Path, path: str, message: str) -> None:
    make_run(tmp_path / "runs" / "run-1", 5)
    (tmp_path / "runs" / "empty").mkdir()
    make_run(tmp_path / "runs" / "empty")
    with pytest.raises(CheckpointError, match=message):
        chosen_run(str(tmp_path / path))


def test_a_checkpoint_under_another_name_has_no_step(tmp_path: Path) -> None:
    """A copy beside the others can be chosen, but its marker alone has its number, and no run continues from it."""
    run = make_run(tmp_path / "run", 4, 99_999_999, 100_000_000)
    for name in ("copy", "step-99999999.bak", "zoo"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / "COMPLETE").touch()
    newest = chosen_run(str(run))
    assert (newest["checkpoint"], newest["step"]) == ("step-100000000", 100_000_000)
    found = chosen_run(str(run / "checkpoints" / "copy"))
    assert found == {
        "name": "run", "path": str(run / "checkpoints" / "copy"), "checkpoint": "copy", "metrics": {}, "chosen": "copy",
    }  # fmt: skip


def test_results_of_two_folders_with_runs_of_one_name_are_apart_by_eight_digits() -> None:
    places = [results_of("out", f"/{folder}/runs/mine") for folder in range(300)]
    assert len(set(places)) == 300
    assert all(re.fullmatch(r"out/other_runs/mine-[0-9a-f]{8}", place) for place in places)
