"""Which checkpoint a session starts from, by what the parameters, the run and the launcher say; seeds of all noise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.training import resuming
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.state import step_seed


def checkpoints(root: Path, run: str, *steps: int) -> None:
    for step in steps:
        folder.write(root / run / "checkpoints", step, folder.Contents({}, {"training_state.json": {"step": step}}))


def started(root: Path, *, resume: str, attempt: int = 0, own: bool = True) -> tuple[str | None, list[str]]:
    """The name that is returned, and the checkpoints that are restored, relative to the folder of the runs."""
    newest = folder.newest_whole(root / "run" / "checkpoints")[0] if own else None
    restored: list[str] = []
    parts: Any = SimpleNamespace(
        checkpointer=SimpleNamespace(
            newest=lambda: newest, restore=lambda path: restored.append(path.relative_to(root).as_posix())
        ),
        process=SimpleNamespace(rank_info=SimpleNamespace(attempt=attempt)),
    )  # fmt: skip
    return resuming.start(parts, helpers.spec(resume=resume), root), restored


@pytest.mark.parametrize(
    ("resume", "attempt", "own", "expected"),
    [
        ("auto", 0, True, "run/checkpoints/step-00000006"), ("auto", 0, False, None), ("never", 0, True, None),
        ("never", 0, False, None), ("never", 1, True, "run/checkpoints/step-00000006"), ("never", 1, False, None),
        ("other", 0, False, "other/checkpoints/step-00000008"), ("other", 0, True, "run/checkpoints/step-00000006"),
        ("other", 1, False, "other/checkpoints/step-00000008"),
        ("other/checkpoints/step-00000003", 0, False, "other/checkpoints/step-00000003"),
        ("run/checkpoints/step-00000002", 1, True, "run/checkpoints/step-00000006"),
    ],
)  # fmt: skip
def test_a_session_starts_from_its_own_newest_checkpoint_and_else_from_the_one_that_is_named(
    resume: str, attempt: int, own: bool, expected: str | None, tmp_path: Path
) -> None:
    checkpoints(tmp_path, "run", 2, 6)
    checkpoints(tmp_path, "other", 3, 8)
    name, restored = started(tmp_path, resume=resume, attempt=attempt, own=own)
    assert restored == ([] if expected is None else [expected])
    assert name == (None if expected is None else expected.rpartition("/")[2])


def test_a_run_to_resume_that_is_not_there_is_a_fault_of_its_parameter(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^parameter 'training\.resume': .*nowhere: no complete checkpoint"):
        started(tmp_path, resume="nowhere", own=False)


@pytest.mark.parametrize(
    ("record", "back"),
    [
        (None, True),
        ({"step": 4, "fingerprint": "other"}, True),
        ({"step": 2}, True),
        ({"step": "2"}, True),
        ({"step": "2", "fingerprint": "mine"}, True),
        ({"step": 2.0, "fingerprint": "mine"}, True),
        ({"step": None, "fingerprint": "mine"}, True),
        ({"step": [2], "fingerprint": "mine"}, True),
        ({"step": 2, "fingerprint": "other"}, True),
        ({"step": 2, "fingerprint": "mine"}, False),
    ],
    ids=str,
)
def test_a_run_goes_back_once_with_the_same_parameters(record: Any, back: bool, tmp_path: Path) -> None:
    checkpoints(tmp_path, "run", 2, 4, 6)
    spec = helpers.spec(resume="run/checkpoints/step-00000002")
    path = tmp_path / "run" / "checkpoints" / "step-00000002"
    if record is not None:
        found = {key: spec.fingerprint if value == "mine" else value for key, value in record.items()}
        (path.parent / "went_back.json").write_text(json.dumps(found))
    assert resuming.back_to(spec, tmp_path) == (path if back else None)
    known = bool(record) and type(record["step"]) is int and record["step"] == 2 and "fingerprint" in record
    assert resuming.went_back(path) is known
    assert resuming.went_back(path.with_name("step-00000006")) is False
    for other in ("auto", "never", "elsewhere/checkpoints/step-00000002", "run"):
        assert resuming.back_to(helpers.spec(resume=other), tmp_path) is None


def test_checkpoints_are_moved_with_their_files_and_the_others_stay(tmp_path: Path) -> None:
    checkpoints(tmp_path, "run", 2, 4, 6)
    directory = tmp_path / "run" / "checkpoints"
    moved = resuming._move_aside(directory, resuming.later(directory / "step-00000002"))
    assert moved == tmp_path / "run" / "checkpoints.old-1"
    assert [folder.step_of(path) for path in folder.all_in(moved)] == [4, 6]
    assert [folder.step_of(path) for path in folder.all_in(directory)] == [2]
    for step in (4, 6):
        assert folder.document(folder.find(moved, which=str(step)), "training_state.json") == {"step": step}


@pytest.mark.parametrize(("seed", "draw", "name"), [(7, 3, ""), (3, 7, "model"), (0, 0, "dropout/1")])
def test_the_seed_of_a_step_is_the_same_in_every_version(seed: int, draw: int, name: str) -> None:
    """A run that is resumed after an update continues with its noise."""
    words = "/".join((str(seed), str(draw), name))
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    number = sum(byte << (8 * place) for place, byte in enumerate(digest))
    assert step_seed(seed, draw, name) == number // 2 < 2**63
    assert step_seed(seed, draw) == step_seed(seed, draw, "")
