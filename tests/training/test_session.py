"""Sessions from the launching process: a complete session, its reference, and the errors of failures."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import helpers
import pytest

from mm_ldlm.errors import CheckpointError, ConfigurationError, PreflightError, StoreError, WorkerFailed
from mm_ldlm.training import status
from mm_ldlm.training.session import reference, run_session
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.status import read_failure, read_status, write_failure, write_status


def test_a_session_runs_and_a_second_one_finds_it_finished(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    spec = helpers.planned(tmp_path, max_steps=4, launch={"processes": 1})
    first = run_session(spec.to_dict(), runs)
    assert first["name"] == "run"
    assert first["step"] == 4
    assert first["checkpoint"] == "step-00000004"
    assert first["fingerprint"] == spec.fingerprint
    assert "loss" in first["metrics"]
    before = (runs / "run/training_log.jsonl").read_text()
    assert run_session(spec.to_dict(), runs) == first == reference(spec, runs)
    assert (runs / "run/training_log.jsonl").read_text() == before
    (log,) = (runs / "logs/run").rglob("stderr.log")  # of the first session: the second one started no rank
    assert log.parent.name == "0"


def test_a_workers_error_comes_back_in_its_own_words_and_restarts_do_not_repeat_it(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    spec = helpers.planned(
        tmp_path,
        max_steps=4,
        launch={"processes": 1, "max_restarts": 1},
        batch={"examples": 2, "accumulation": 4},
        preflight=True,
    )
    with pytest.raises(WorkerFailed, match="fewer examples than its 4 micro-batches") as raised:
        run_session(spec.to_dict(), runs)
    assert "before the first step" in str(raised.value) or "at step 0" in str(raised.value)
    assert read_status(runs / "run")["status"] == "failed"


def test_an_unfinished_run_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = helpers.spec()
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("mm_ldlm.training.session.launch", lambda *a, **k: write_status(tmp_path / "run", "stopped", 3))
    with pytest.raises(WorkerFailed, match="was stopped before its first checkpoint"):
        run_session(spec.to_dict(), tmp_path)


@pytest.mark.parametrize(("number", "sends"), [("0", True), ("1", False)])
def test_of_several_hosts_the_first_alone_sends_the_log_to_mlflow(
    number: str, sends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str]] = []
    for name, value in (("NNODES", "2"), ("NODE_RANK", number), ("MASTER_ADDR", "head")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("mm_ldlm.training.session.MlflowSink", lambda *about: made.append(about))
    monkeypatch.setattr("mm_ldlm.training.session.Follower", lambda *_: nullcontext())
    monkeypatch.setattr("mm_ldlm.training.session.launch", lambda *a, **k: write_status(tmp_path / "run", "stopped", 3))
    (tmp_path / "run").mkdir()
    spec = dataclasses.replace(helpers.spec(), tracking={"tracking_uri": "sqlite:///m.db", "run_id": "0"})
    with pytest.raises(WorkerFailed, match="was stopped"):
        run_session(spec.to_dict(), tmp_path)
    assert made == [("sqlite:///m.db", "0")] * sends


def test_a_second_session_of_a_run_starts_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOCK_SECONDS", 0.0)

    def second(module: str, arguments: list[str], **options: object) -> None:
        """What the launcher is asked to do while the first session's workers run."""
        before = Path(arguments[0]).read_text()
        monkeypatch.setattr("mm_ldlm.training.session.launch", lambda *a, **k: pytest.fail("workers were started"))
        other = helpers.spec(max_steps=77).to_dict()
        with pytest.raises(WorkerFailed, match=r"another training is writing to .*run \(it holds the lock"):
            run_session(other, tmp_path)
        assert Path(arguments[0]).read_text() == before, "restarted workers read the spec of their own session"
        write_status(tmp_path / "run", "stopped", 3)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("mm_ldlm.training.session.launch", second)
    with pytest.raises(WorkerFailed, match=r"was stopped before its first checkpoint\. The same command starts again"):
        run_session(helpers.spec().to_dict(), tmp_path)


@pytest.mark.parametrize(
    ("resume", "words"),
    [("auto", "The same command continues from there"), ("never", "`training.resume: auto` continues from there")],
)
def test_an_interrupted_session_reports_how_to_continue(
    resume: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mm_ldlm.training.session.launch", interrupted)
    monkeypatch.setattr("mm_ldlm.training.session.folder.all_in", lambda path: sorted(path.glob("step-*")))
    spec = helpers.spec(resume=resume).to_dict()
    with pytest.raises(KeyboardInterrupt):
        run_session(spec, tmp_path)
    assert "interrupted before its first checkpoint. The same command starts again from the beginning" in caplog.text
    (checkpoints / "step-00000003").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        run_session(spec, tmp_path)
    assert f"its newest checkpoint is step-00000003 of 10 steps. {words}" in caplog.text


@pytest.mark.parametrize("key", ["resume", "init_from"])
def test_a_run_to_start_from_that_is_not_there_is_refused_until_the_run_has_a_checkpoint(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.training.session.launch", lambda *a, **k: write_status(tmp_path / "run", "stopped", 3))
    spec = helpers.spec(**{key: "run-of-nobody"}).to_dict()
    with pytest.raises(ConfigurationError, match=rf"'training.{key}': expected the folder.*run-of-nobody"):
        run_session(spec, tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("mm_ldlm.training.session.folder.all_in", lambda path: [path / "step-00000003"])
    with pytest.raises(WorkerFailed, match="was stopped; its newest checkpoint is step-00000003"):
        run_session(spec, tmp_path)


def test_a_failure_belongs_to_its_launch(tmp_path: Path) -> None:
    write_failure(tmp_path, "a", PreflightError("first"))
    write_failure(tmp_path, "a", PreflightError("second"))
    assert read_failure(tmp_path, "a") == "first"
    assert read_failure(tmp_path, "b") is None


def test_a_spec_of_an_earlier_version_may_have_the_number_of_a_host() -> None:
    spec = helpers.spec()
    found = spec.to_dict()
    found["training"]["launch"]["node_rank"] = None
    assert TrainingSpec.from_dict(found) == spec


def test_specs_are_refused_when_they_do_not_fit(tmp_path: Path) -> None:
    found = helpers.spec().to_dict()
    for change, words in (
        ({"format_version": 0}, "Plan the training again"),
        ({"training": {**found["training"], "max_step": 3}}, "max_step"),
        ({"shape": {}}, "missing"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            TrainingSpec.from_dict({**found, **change})
    with pytest.raises(ConfigurationError, match="no such spec"):
        TrainingSpec.read(tmp_path / "none.json")


def test_the_name_follows_what_the_run_is_not_how_it_is_watched() -> None:
    def name(**settings: object) -> str:
        return helpers.spec(run_name=None, **settings).name

    assert name() == name(log_every=7) == name(launch={"processes": 4}) == name(resume="never") == name(preflight=True)
    assert name() == name(show_every_seconds=5)
    assert (
        len({name(), name(max_steps=11), name(seed=8), name(model={"depth": 1}), name(objective={"mode": "l2t"})}) == 5
    )


def test_a_plan_that_contradicts_the_data_is_refused(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    assert helpers.planned(tmp_path).shape == dataclasses.replace(helpers.SHAPE, state_dim=helpers.STATE_DIM)
    with pytest.raises(ConfigurationError, match=r"interface 'next_token'"):
        helpers.planned(tmp_path, model={"kind": "causal"})
    with pytest.raises(StoreError, match="has no token_vectors"):
        helpers.planned(tmp_path, model={"token_vectors": "encoder"})


def test_a_run_cannot_have_the_name_of_a_file(tmp_path: Path) -> None:
    helpers.write_stores(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes").write_text("")
    with pytest.raises(ConfigurationError, match=r"'training\.run_name': .* found 'notes', which is a file there"):
        helpers.planned(tmp_path, run_name="notes")


def test_a_damaged_status_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"status\.json: not readable as JSON .* Remove it"):
        read_status(tmp_path)
