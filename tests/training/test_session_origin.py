"""Where a session starts from, before it starts any rank: what is refused, and what is logged."""

from __future__ import annotations

import logging
from pathlib import Path

import helpers
import pytest

from mm_ldlm.checkpoints import folder
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.training import session


def checkpoints(root: Path, run: str, *steps: int) -> None:
    for step in steps:
        folder.write(root / run / "checkpoints", step, folder.Contents({}, {"training_state.json": {}}))


@pytest.mark.parametrize(("key", "refused"), [("resume", True), ("init_from", False)])
def test_a_file_of_another_trainer_gives_weights_and_no_state(key: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "theirs.pt").touch()
    spec = helpers.spec(**{key: "theirs.pt"})
    if refused:
        with pytest.raises(ConfigurationError, match=r"'training\.resume': expected the folder of a run .* theirs\.pt"):
            session._refuse_missing_origin(spec, tmp_path)
    else:
        session._refuse_missing_origin(spec, tmp_path)
    (tmp_path / "other").mkdir()
    session._refuse_missing_origin(helpers.spec(**{key: "other"}), tmp_path)
    for both in ({"resume": "none", "init_from": "other"}, {"resume": "other", "init_from": "none"}):
        with pytest.raises(ConfigurationError, match="found none at none"):
            session._refuse_missing_origin(helpers.spec(**both), tmp_path)
    checkpoints(tmp_path, "run", 4)
    session._refuse_missing_origin(helpers.spec(**{key: "none"}), tmp_path)


@pytest.mark.parametrize(
    ("resume", "back", "level", "words"),
    [
        ("auto", None, None, ""), ("never", None, None, ""),
        ("other", None, logging.INFO, "continues from its own step-00000006; training.resume named its origin"),
        ("run/checkpoints/step-00000002", 2, logging.WARNING, "goes back to step-00000002; its later checkpoints "
         "(step-00000004, step-00000006) are moved"),
        ("run/checkpoints/step-00000006", 6, logging.WARNING, "its later checkpoints (none) are moved"),
    ],
)  # fmt: skip
def test_it_is_logged_which_checkpoint_a_run_starts_from(
    resume: str, back: int | None, level: int | None, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    checkpoints(tmp_path, "run", 2, 4, 6)
    path = None if back is None else tmp_path / "run" / "checkpoints" / folder.name_of(back)
    session._report_origin(helpers.spec(resume=resume), tmp_path, path)
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [number for number, _ in found] == ([] if level is None else [level])
    assert words in "".join(text for _, text in found)
    caplog.clear()
    session._report_origin(helpers.spec(resume="other", run_name="new"), tmp_path, None)
    assert not caplog.records, "a new run starts from its origin"


def test_sizes_are_described_also_without_a_dataset(tmp_path: Path) -> None:
    """The workers report a dataset that cannot be read."""
    text = session._refuse_beyond_memory(helpers.spec(), tmp_path)
    assert text.endswith(" parameters of the model, 0 training examples of 0 tokens")
    assert int(text.split()[0].replace(",", "")) > 1000
