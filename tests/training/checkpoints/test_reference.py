"""Runs that are named by run.json or chosen by their path, without torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.checkpoints.test_folder import run_of

from mm_ldlm.core import CheckpointError, UnsafePathError
from mm_ldlm.training.checkpoints.reference import (
    CHOSEN,
    chosen_run,
    config_of,
    results_of,
    run_folder,
    runs_of,
    split_path,
    weights_folder,
)


@pytest.mark.parametrize("reference", [{"name": "../x"}, {"name": "/x"}, {"name": ""}, {"name": 3}, {}, [], None])
def test_a_reference_names_a_folder_of_the_runs(reference: Any, tmp_path: Path, refuses: Callable[..., Any]) -> None:
    with refuses(CheckpointError, "run.json"):
        run_folder(tmp_path, reference)
    assert run_folder(tmp_path, {"name": "run"}) == tmp_path / "run"


@pytest.mark.parametrize("name", ["../../x", "/etc", ".."])
def test_pitfall_29_a_checkpoint_of_a_reference_lies_in_its_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match="checkpoints"):
        weights_folder(tmp_path, {"name": "run", CHOSEN: name})


def test_a_run_is_chosen_by_its_path_or_by_that_of_a_checkpoint(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    directory = run_of(tmp_path, 2, 4)
    run = tmp_path / "run"
    for path, chosen, step in ((run, None, 4), (directory, None, 4), (directory / "step-00000002", "step-00000002", 2)):
        found = chosen_run(str(path))
        assert (found["name"], found[CHOSEN], found["step"]) == ("run", chosen, step)
        assert weights_folder(tmp_path, found) == (run if chosen is None else directory / chosen)
    with refuses(CheckpointError, "rum", "run"):
        chosen_run(str(tmp_path / "rum"))
    (run / "config.json").write_text("{}")
    with refuses(CheckpointError, "config.json"):
        config_of(run)
    found = {"model": 1, "objective": 2, "shape": 3}
    (run / "config.json").write_text(json.dumps(found))
    assert config_of(directory, run) == found


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, refuses: Callable[..., Any]) -> None:
    directory = run_of(tmp_path)
    with refuses(CheckpointError, "no checkpoint"):
        chosen_run(str(directory))


@given(parts=st.lists(st.text("ab", min_size=1, max_size=3), min_size=2, max_size=4), step=st.booleans())
def test_results_of_other_runs_do_not_share_a_folder(parts: list[str], step: bool) -> None:
    run = "/" + "/".join(parts)
    path = f"{run}/checkpoints/step-00000004" if step else run
    assert split_path(path) == (Path(run), "step-00000004" if step else None)
    assert results_of("out", None) == "out"
    assert results_of("out", path).startswith("out/other_runs/")
    assert results_of("out", path) != results_of("out", f"/other{path}")
    assert runs_of("runs", path) == str(Path(run).parent)
    assert runs_of("runs", None) == "runs"
