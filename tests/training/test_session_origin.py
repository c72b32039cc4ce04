"""Where a session starts from, before it starts any rank: what is refused, and what is logged."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import helpers
import pytest

from mm_ldlm.core.errors import ConfigurationError, PreflightError, TrainingDiverged, WorkerFailed
from mm_ldlm.training import session
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.status import write_status


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


def test_sizes_are_the_examples_and_tokens_of_the_training_split(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    dataset = helpers.commit_dataset(tmp_path)
    spec = dataclasses.replace(helpers.spec(), dataset="../dataset")
    lengths = dataset.lengths("train")
    (tmp_path / "runs").mkdir()
    text = session._refuse_beyond_memory(spec, tmp_path / "runs")
    assert text.endswith(f" parameters of the model, {len(lengths)} training examples of {lengths.sum()} tokens")
    assert len(lengths) == 56


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_finished_run_is_trained_again_only_where_nothing_is_to_be_resumed(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints(tmp_path, "run", 4)
    write_status(tmp_path / "run", "finished", 4, metrics={})
    started: list[str] = []
    monkeypatch.setattr(session, "launch", lambda module, *_, **__: started.append(module))
    found = session.run_session(helpers.spec(resume=resume).to_dict(), tmp_path)
    assert found["step"] == 4
    assert started == ["mm_ldlm.training.worker"] * (resume == "never")


@pytest.mark.parametrize(("cause", "raised"), [(TrainingDiverged, TrainingDiverged), (PreflightError, WorkerFailed)])
def test_a_training_that_diverged_is_told_apart_from_a_worker_that_failed(
    cause: type[Exception], raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: object, **__: object) -> None:
        raise WorkerFailed("rank 1: loss is nan", error_class=cause.__name__)

    monkeypatch.setattr(session, "launch", launch)
    with pytest.raises(raised, match="rank 1: loss is nan") as found:
        session.run_session(helpers.spec().to_dict(), tmp_path)
    assert type(found.value) is raised
