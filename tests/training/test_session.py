"""Sessions from the launching process: a complete session, its reference, and the errors of failures."""

from __future__ import annotations

import dataclasses
import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest

from mm_ldlm.core.errors import CheckpointError, ConfigurationError, PreflightError, StoreError, WorkerFailed
from mm_ldlm.distributed.launch import LaunchConfig
from mm_ldlm.training import status, worker
from mm_ldlm.training.checkpoints import folder
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


@pytest.mark.parametrize(("hosts", "job"), [(1, None), (3, None), (3, "mine")])
def test_the_launch_of_a_session_is_that_of_its_parameters(
    hosts: int, job: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def launch(module: str, arguments: list[str], **given: Any) -> None:
        seen.append((module, arguments, given, TrainingSpec.read(Path(arguments[0]))))
        write_status(tmp_path / "run", "stopped", 3)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("mm_ldlm.training.session.launch", launch)
    monkeypatch.setattr("mm_ldlm.training.session.host_name", lambda: "host-a")
    if hosts > 1:
        monkeypatch.setenv("NODE_RANK", "2")
    settings = {"processes": 5, "max_restarts": 7, "nodes": hosts, "rendezvous": "head:29411", "keep_logs": 9,
                "job": job}  # fmt: skip
    spec = helpers.spec(launch=settings)
    with pytest.raises(WorkerFailed, match="was stopped"):
        run_session(spec.to_dict(), tmp_path)
    ((module, arguments, given, read),) = seen
    assert (module, read, arguments[1:]) == ("mm_ldlm.training.worker", spec, ["--root", str(tmp_path)])
    assert given["log_directory"] == tmp_path / "logs" / "run" / "host-a"
    own = {"node_rank": None, "job": None} if hosts == 1 else {"node_rank": 2, "job": job or "run"}
    assert given["config"] == LaunchConfig(**{**settings, **own}), "hosts of a run meet under its name"
    locks = [path.name for path in tmp_path.glob(".*.lock")]
    assert locks == [".run.session.lock"] * (hosts == 1), "each host has a session of its own"


@pytest.mark.parametrize(
    ("ending", "code"), [("finished", 0), ("stopped", 0), (PreflightError("no"), 1), (ValueError("x"), None)]
)
def test_the_command_of_a_worker_trains_beside_its_spec_and_records_its_error(
    ending: Any, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def train(spec: TrainingSpec, *, root: Path) -> Any:
        seen.append((spec, root))
        if isinstance(ending, Exception):
            raise ending
        return SimpleNamespace(ending=ending, step=8)

    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker, "append_output", lambda: None)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    spec = helpers.spec()
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_dict()))
    for options, root in (([], tmp_path), (["--root", str(tmp_path / "other")], tmp_path / "other")):
        if code is None:
            with pytest.raises(ValueError, match="x"):
                worker.main([str(tmp_path / "spec.json"), *options])
        else:
            assert worker.main([str(tmp_path / "spec.json"), *options]) == code
        assert seen.pop() == (spec, root)
    assert (tmp_path / "error.json").exists() == isinstance(ending, Exception)
    said = capsys.readouterr().err
    assert said.count("stopped at step 8; the checkpoint is written") == 2 * (ending == "stopped")
    assert said.count("PreflightError: no") == 2 * (code == 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_for_an_end_and_the_second_one_ends(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(worker.signal, "raise_signal", raised.append)
    before = signal.getsignal(number)
    with worker.stop_on_signal() as requested:
        handle: Any = signal.getsignal(number)
        assert handle != before
        assert not requested()
        handle(number, None)
        assert (requested(), raised, signal.getsignal(number)) == (True, [], handle)
        handle(number, None)
        assert (raised, signal.getsignal(number)) == ([number], signal.SIG_DFL)
    assert signal.getsignal(number) == before


def test_a_rank_joins_with_the_device_threads_and_time_of_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(**given: Any) -> Any:
        assert given == {"device": "cuda:3", "timeout_minutes": 13.0, "threads": 5}
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "joined", joined)
    spec = helpers.spec(device="cuda:3", collective_timeout_minutes=13, threads=5)
    with pytest.raises(KeyboardInterrupt):
        worker.train(spec, root=tmp_path)


@pytest.mark.parametrize("in_project", [True, False])
def test_the_reference_of_a_run_has_its_newest_step_and_a_readable_path(in_project: bool, tmp_path: Path) -> None:
    if in_project:
        (tmp_path / "pyproject.toml").touch()
    runs = tmp_path / "data" / "runs"
    for step in (5, 8):
        folder.write(runs / "run" / "checkpoints", step, folder.Contents({"model.safetensors": {}}, {"a.json": {}}))
    write_status(runs / "run", "finished", 9, metrics={"loss": 0.25})
    spec = helpers.spec()
    assert reference(spec, runs) == {
        "name": "run", "path": "data/runs/run" if in_project else (runs / "run").as_posix(),
        "fingerprint": spec.fingerprint, "step": 9, "checkpoint": "step-00000008", "metrics": {"loss": 0.25},
    }  # fmt: skip
