"""The checkpoint that a session starts from; going back to an earlier one loses none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training import task
from tests.training.test_loop import EVERY_STEP

from mm_ldlm.core import CheckpointError
from mm_ldlm.training import loop, resuming
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import all_in, latest, name_of, pointed
from mm_ldlm.training.resuming import back_to, start


def session(root: Path, **training: Any) -> tuple[loop.Run, str | None]:
    spec = task.spec(max_steps=6, checkpoint=EVERY_STEP, **training)
    run = task.built(spec, root)
    return run, start(run.checkpointer, spec, root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run, _ = session(tmp_path)
    loop.train(run)
    folder.point(run.checkpointer.directory, "best", run.checkpointer.directory / name_of(5))
    return tmp_path


def test_a_session_continues_its_run_another_one_or_none(root: Path) -> None:
    assert session(root)[1] == name_of(6)
    assert session(root, resume="never")[1] is None
    assert session(root, run_name="other", resume="run/checkpoints/step-00000003")[1] == name_of(3)
    assert session(root, run_name="other")[1] is None


def test_pitfall_38_a_damaged_latest_checkpoint_is_not_passed_over(root: Path, refuses: Callable[..., Any]) -> None:
    (root / "run/checkpoints" / name_of(6) / "model.safetensors").write_bytes(b"x")
    with refuses(CheckpointError, name_of(6)):
        session(root)
    run, back = session(root, resume=f"run/checkpoints/{name_of(5)}")
    assert back == name_of(5)
    assert latest(run.checkpointer.directory) == run.checkpointer.directory / name_of(5)


def test_a_run_goes_back_once_and_keeps_what_came_later(root: Path) -> None:
    directory = root / "run/checkpoints"
    before = task.saved(root, 6)
    run, back = session(root, resume=f"run/checkpoints/{name_of(3)}")
    assert (back, run.learner.state.step) == (name_of(3), 3)
    assert [path.name for path in all_in(directory)] == [name_of(step) for step in (1, 2, 3)]
    assert [path.name for path in all_in(root / "run/checkpoints.old-1")] == [name_of(step) for step in (4, 5, 6)]
    assert latest(directory) == directory / name_of(3)
    assert pointed(directory, "best") is None
    loop.train(run)
    assert task.largest_difference(before, task.saved(root, 6)) == 0
    run, again = session(root, resume=f"run/checkpoints/{name_of(3)}")
    assert again == name_of(6), "the same command continues"


def test_a_kill_while_going_back_loses_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {path.name for path in all_in(root / "run/checkpoints")}
    steps = [(resuming.folder, "point"), (Path, "rename"), (resuming, "aside"), (resuming, "write_json")]
    for owner, name in steps:
        real = getattr(owner, name)

        def killed(*arguments: Any, real: Any = real, **keys: Any) -> Any:
            real(*arguments, **keys)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(KeyboardInterrupt):
                session(root, resume=f"run/checkpoints/{name_of(2)}")
        kept = {path.name for path in (root / "run").glob("checkpoints*/step-*")}
        assert kept == expected
        assert folder.find(root / "run")
    assert session(root, resume=f"run/checkpoints/{name_of(2)}")[1] == name_of(2)


def test_a_checkpoint_that_is_not_there_is_refused(root: Path, refuses: Callable[..., Any]) -> None:
    spec = task.spec(max_steps=6, resume=f"run/checkpoints/{name_of(9)}")
    with refuses(CheckpointError, name_of(9)):
        back_to(spec, root)
    with refuses(CheckpointError, "nowhere"):
        session(root, run_name="other", resume="nowhere")
