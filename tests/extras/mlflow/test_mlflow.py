"""Tracking: what a run leaves in MLflow and on the terminal, and that it never waits for a store that does not answer."""

import json
import multiprocessing
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kedro.pipeline import Pipeline, node
from tests.app.sessions import Session

from mm_ldlm.core import ConfigurationError, TrackingError, parse
from mm_ldlm.extras.mlflow import hooks
from mm_ldlm.extras.mlflow.client import (
    MlflowRun,
    metrics_of,
    open_somewhere,
    resolved,
    within,
)
from mm_ldlm.extras.mlflow.commands import send_runs
from mm_ldlm.extras.mlflow.config import TrackingConfig
from mm_ldlm.extras.mlflow.hooks import NOTE, TrackingHooks
from mm_ldlm.extras.mlflow.metric_names import HEADLINE, name_of
from mm_ldlm.extras.mlflow.unsent_runs import SENT
from mm_ldlm.training.jsonl import Tracker

Database = Callable[[Path], str]
SPEC = {"name": "run-1", "training": {"max_steps": 2}}
METRICS = {
    "l2t.exact_match": 0.5,
    "nll.per_token": 2.0,
    "x.nan": float("nan"),
    "a.b.c": 3.0,
    "made_by": {"run": "run-1"},
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """`database(path)` makes an empty database, whose tables take more than a second to make, and returns its address."""

    def copy(path: Path) -> str:
        path.parent.mkdir(exist_ok=True)
        return f"sqlite:///{shutil.copy(empty, path)}"

    empty = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowRun(f"sqlite:///{empty}", "").client.search_experiments()
    return copy


def _pipeline(root: Path) -> Pipeline:
    """Nodes that load and save what a run does, with names of the catalog."""

    def plan() -> dict[str, Any]:
        return SPEC

    def train(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
        log = Tracker(runs / spec["name"] / "training_log.jsonl")
        log.event(1, "start")
        for step in (1, 2):
            log.metrics(step, {"loss": 2.0 / step, "lr": 0.1, "grad_norm": 1.0, "validation/loss": float("inf")})
        log.event(2, "preview", text="b", original="a")
        log.event(2, "skip", reason="spike")
        log.event(2, "checkpoint")
        log.close()
        (runs / spec["name"] / "config.json").write_text(json.dumps({"model": {"kind": "mmdit"}, "path": f"{root}/x"}))
        return {"name": "run-1", "step": 2, "checkpoint": "step-00000002", "fingerprint": "f00d"}

    def report(run: dict[str, Any], from_tracking: Any) -> tuple[dict[str, Any], str]:
        assert from_tracking("0" * 32) == {}
        return METRICS, "<html>"

    return Pipeline(
        [
            node(plan, None, "training_spec", name="training.plan_training", tags="training"),
            node(train, ["training_spec", "runs"], "run", name="training.run_training", tags="training"),
            node(
                report,
                ["run", "tracked_metrics"],
                ["metrics", "report"],
                name="reporting.write_report",
                tags="reporting",
            ),
        ]
    )


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The MLflow run of these nodes, and a client of its store."""
    root = tmp_path_factory.mktemp("tracked")
    uri = f"sqlite:///{root}/mlflow.db"
    Session(root, tracking={"enabled": True, "uri": uri}).run(_pipeline(root))
    client = MlflowRun(uri, "").client
    reference = json.loads((root / "06_models/tracking_reference.json").read_text())
    return client.get_run(reference["run_id"]), client


def test_the_load_of_the_machine_is_recorded(tracked: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    run, client = tracked
    run_id = client.create_run(run.info.experiment_id).info.run_id
    watched, before = MlflowRun(client.tracking_uri, run_id), {*threading.enumerate()}
    watched.watch()
    name, give_up = "system/system_memory_usage_percentage", time.monotonic() + 60
    while not (found := client.get_metric_history(run_id, name)) and time.monotonic() < give_up:
        time.sleep(0.05)
    watched.close("FINISHED")
    assert any(point.value > 0 for point in found)
    assert {*threading.enumerate()} <= before, "nothing is recorded after the end"


def test_one_run_holds_parameters_curves_headlines_and_report(tracked: tuple[Any, Any]) -> None:
    run, client = tracked
    assert run.info.status == "FINISHED"
    assert (run.data.params["model.kind"], len(run.data.params) > 100) == ("mmdit", True), "of several requests"
    assert run.data.metrics["4_evaluation/a/b.c"] == 3.0
    assert [point.value for point in client.get_metric_history(run.info.run_id, f"{HEADLINE}/loss")] == [2.0, 1.0]
    assert run.data.metrics[f"{HEADLINE}/l2t.exact_match"] == 0.5
    assert not any("nan" in name or "validation" in name for name in run.data.metrics)  # MLflow has no such numbers
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "config.json",
        "metrics.json",
        "report.html",
    }


def test_its_metrics_are_those_of_its_evaluation(tracked: tuple[Any, Any]) -> None:
    run, client = tracked
    found = metrics_of(client.tracking_uri, run.info.run_id)
    assert (found.keys(), found["l2t.exact_match"]) == (METRICS.keys(), 0.5)
    assert metrics_of(client.tracking_uri, "0" * 32) == {}


def test_its_page_leads_back_to_the_run_without_paths_of_this_machine(tracked: tuple[Any, Any]) -> None:
    run, client = tracked
    tags = run.data.tags
    assert (tags["run_folder"], tags["run_fingerprint"], tags["checkpoint"]) == ("run-1", "f00d", "step-00000002")
    assert (tags["trained_here"], tags["pipelines"]) == (
        "true",
        "training,reporting (write_report)",
    )
    assert tags["preview"] == "a → b"
    assert "spike" in tags["last_event"]
    assert tags["mlflow.runName"].endswith("@test run-1")
    assert "run-1" in tags[NOTE]
    assert "0.5" in tags[NOTE]
    here = Path(client.tracking_uri).parent.name
    assert not re.search(rf"/(tmp|root|home|work)/\w+/|{here}", json.dumps({**tags, **run.data.params}))


def test_a_run_that_fails_says_why(tmp_path: Path, database: Database) -> None:
    def fail(_: Any) -> None:
        raise ConfigurationError(f"no {tmp_path}/folder/x")

    uri = database(tmp_path / "mlflow.db")
    pipeline = Pipeline([node(fail, "params:seed", None, name="validation.one", tags="validation")])
    with pytest.raises(ConfigurationError):
        Session(tmp_path, tracking={"enabled": True, "uri": uri}).run(pipeline)
    client = MlflowRun(uri, "").client
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FAILED"
    assert run.data.tags["reason"] == "no …/x" or str(tmp_path) not in run.data.tags["reason"]


# --- stores that do not answer ----------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_run_is_recorded_locally_or_not_at_all_where_its_store_is_away(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.mlflow.client.LONGEST", 0.5)
    about: dict[str, Any] = {"experiment": "e", "name": "n", "parameters": {}, "parent": "of the server"}
    run = open_somewhere(silent, root=tmp_path, **about)
    assert run is not None
    assert (tmp_path / "data/mlflow_local.db").is_file()
    assert "mlflow ui" in caplog.text
    assert "mlflow.parentRunId" not in run.client.get_run(run.run_id).data.tags
    (tmp_path / "other/data").mkdir(parents=True)
    os.mkfifo(tmp_path / "other/data/mlflow_local.db")  # opening it would wait for a writer
    assert open_somewhere(silent, root=tmp_path / "other", **about) is None


def opened(root: Path) -> str:
    run = open_somewhere("sqlite:///x.db", root=root, parent=None, experiment="e", name="n", parameters={})
    assert run is not None
    return run.uri


def test_first_runs_that_create_a_database_at_once_are_all_recorded(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(opened, [tmp_path] * 3, chunksize=1)
    assert found == [f"sqlite:///{tmp_path}/x.db"] * 3
    assert len(MlflowRun(found[0], "").client.search_runs(["1"])) == 3


def test_a_copied_database_writes_its_artifacts_beside_itself(tmp_path: Path) -> None:
    def place(folder: str) -> str:
        run = open_somewhere(
            "sqlite:///x.db", root=tmp_path / folder, parent=None, experiment="e", name="n", parameters={}
        )
        assert run is not None
        return str(run.client.get_run(run.run_id).info.artifact_uri)

    (tmp_path / "first").mkdir()
    first = [place("first"), place("first")]
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    for uri, folder in [*((uri, "first") for uri in first), *((place("second"), "second") for _ in range(2))]:
        assert uri.startswith((tmp_path / folder).as_uri())


def sent(root: Path, uri: str) -> list[str]:
    """Run `mm-ldlm send-runs` and return the ids that it prints."""
    result = CliRunner().invoke(send_runs, [uri, "--data", str(root / "data")])
    assert result.exit_code == 0, result.output
    return [line.split(": ")[1] for line in result.stdout.splitlines()]


def test_a_run_that_was_recorded_locally_is_sent_complete_and_once(
    silent: str, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.mlflow.client.LONGEST", 0.5)
    local = MlflowRun(database(tmp_path / "data/mlflow_local.db"), "")
    Session(tmp_path, tracking={"enabled": True, "uri": silent}).run(_pipeline(tmp_path))
    reference = json.loads((tmp_path / "06_models/tracking_reference.json").read_text())
    local.run_id = reference["run_id"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_text("flavors: {}")
    local.add_model(tmp_path / "model", "m", 2)
    local.add_datasets({"data": "0123456789" * 4}, context="train")
    local.client.set_terminated(local.run_id, status="FAILED")
    monkeypatch.chdir(tmp_path)
    uri = database(tmp_path / "server.db")
    local.client.create_run("0")  # one that is still being recorded
    (run_id,) = sent(tmp_path, uri)
    client, here = MlflowRun(uri, "").client, local.client.get_run(local.run_id)
    there = client.get_run(run_id)
    assert there.data.params == here.data.params
    assert there.data.metrics == here.data.metrics
    assert {key: there.data.tags[key] for key in ("command", "run_folder", NOTE)}.items() <= here.data.tags.items()
    assert (there.info.status, there.info.start_time, there.info.end_time) == (
        "FAILED", here.info.start_time, here.info.end_time,
    )  # fmt: skip
    curves = [each.get_metric_history(key, f"{HEADLINE}/loss") for each, key in
              ((client, run_id), (local.client, local.run_id))]  # fmt: skip
    assert [(point.step, point.value, point.timestamp) for point in curves[0]] == [
        (point.step, point.value, point.timestamp) for point in curves[1]
    ]
    assert {file.path for file in client.list_artifacts(run_id)} == {"config.json", "metrics.json", "report.html"}
    assert [each.dataset.digest for each in there.inputs.dataset_inputs] == [("0123456789" * 4)[:36]]
    (model,) = there.outputs.model_outputs
    assert (client.get_logged_model(model.model_id).name, model.step) == ("m", 2)
    local.client.delete_tag(local.run_id, SENT)  # it was interrupted before the end
    assert sent(tmp_path, uri) == [run_id], "into the run that it began"
    assert sent(tmp_path, uri) == []
    for start in (2, 1):
        local.client.set_terminated(local.client.create_run("0", start_time=start).info.run_id)
    assert [client.get_run(each).info.start_time for each in sent(tmp_path, uri)] == [1, 2], "in their order"


@pytest.mark.parametrize(("uri", "said"), [(None, "when it answers"), ("antigravity://host", "Correct")])
def test_runs_are_not_sent_to_an_address_without_a_store(
    uri: str | None, said: str, silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm_ldlm.extras.mlflow.client.LONGEST", 0.5)
    (tmp_path / "mlflow_local.db").touch()
    start = time.monotonic()
    result = CliRunner().invoke(send_runs, [uri or silent, "--data", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert ("when it answers" in result.stderr) == (silent in result.stderr) == (uri is None)
    assert time.monotonic() - start < 30


def test_the_rest_of_a_run_whose_store_goes_away_is_added_to_it_later(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, calls, plain = database(tmp_path / "server.db"), [0], hooks.within
    database(tmp_path / "data/mlflow_local.db")

    def away(call: Any, place: str, **options: Any) -> Any:
        calls[0] += place == uri
        if place == uri and calls[0] > 3:
            raise TrackingError("away")
        return plain(call, place, **options)

    monkeypatch.setattr(hooks, "within", away)
    Session(tmp_path, tracking={"enabled": True, "uri": uri, "run_name": "mine"}).run(_pipeline(tmp_path))
    client = MlflowRun(uri, "").client
    (run_id,) = [
        run.info.run_id for each in client.search_experiments() for run in client.search_runs([each.experiment_id])
    ]
    assert client.get_run(run_id).info.status == "RUNNING"
    assert sent(tmp_path, uri) == [run_id]
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "mine")
    assert run.data.metrics[f"{HEADLINE}/l2t.exact_match"] == 0.5
    assert run.data.params["model.kind"] == "mmdit"
    assert {file.path for file in client.list_artifacts(run_id)} == {"config.json", "metrics.json", "report.html"}


@pytest.mark.parametrize("place", ["folder", "pipe", "file/x.db"])
def test_what_is_no_database_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError):
        resolved(f"sqlite:///{place}", tmp_path)


@pytest.mark.parametrize(
    "uri",
    ["user:S3cret@host", "http://user:S3cret%40host", "http://user:S3cret@host/", "http://user:a S3cret@host/", "http://S3cret@host", "ftp://S3cret",
     "http://h/?token=S3cretS3cret", "sqlite:// S3cret", "S3cret S3cret", "", "http://", "a?S3cret", "http://user:S3cret\uff20host", "mysql://user:S3cret&#64;host/db",
     "http://[user:S3cret]/"],
)  # fmt: skip
def test_an_address_that_is_none_or_has_a_secret_is_refused_unseen(uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tracking\.uri") as raised:
        parse(TrackingConfig, {"enabled": True, "uri": uri, "experiment": "e"}, at="tracking")
    assert "S3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "uri", ["sqlite:///data/mlflow.db", "sqlite:////abs/x.db", "http://host:5000", "https://host/path", "databricks",
            "postgresql+psycopg2://host:5432/db", "file:///folder", "mlruns", "http://[::1]:5000/", "databricks://scope:prefix"],
)  # fmt: skip
def test_addresses_of_mlflow_are_accepted(uri: str) -> None:
    assert parse(TrackingConfig, {"enabled": True, "uri": uri, "experiment": "e"}, at="tracking").uri == uri


# --- names and lines --------------------------------------------------------------------------------------------------


@given(st.sets(st.from_regex(r"[a-z_]+(/[a-z_.]+)?", fullmatch=True), min_size=2))
def test_every_number_of_the_log_has_its_own_name_in_mlflow(keys: set[str]) -> None:
    assert len({name_of(key) for key in keys}) == len(keys)
    assert name_of("validation/text_loss") == "3_validation/text_loss"


def test_many_points_are_sent_in_several_requests_and_a_long_upload_has_its_own_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, sizes = MlflowRun("http://host", "id"), list[int]()
    run.client = SimpleNamespace(log_batch=lambda run_id, metrics: sizes.append(len(metrics)))
    run.add_points(range(2001))
    assert sizes == [1000, 1000, 1]
    monkeypatch.setattr("mm_ldlm.extras.mlflow.client.LONGEST", 0.05)
    assert within(lambda: time.sleep(0.3) or "sent", run.uri, at_least=60.0) == "sent"


def test_lines_that_a_store_did_not_accept_are_sent_later_and_in_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    received, found, calls = list[Any](), TrackingHooks(), [0]

    def add_lines(lines: Any) -> None:
        calls[0] += 1
        if calls[0] in (1, 5):
            raise ConnectionError("away")
        received.extend(lines)

    monkeypatch.setattr(found, "_run", SimpleNamespace(uri="http://host", add_lines=add_lines))
    found._send("add_lines", [{"step": 1}])
    found._send("add_lines", [{"step": 2}])  # rests
    assert (received, calls) == ([], [1])
    monkeypatch.setattr(found, "_resting_until", 0.0)
    found._send("add_lines", [])
    assert received == [{"step": 1}, {"step": 2}]
    found._send("add_lines", [{"step": 3}])
    assert len(caplog.messages) == 2, "each time that the store does not answer"


def test_what_is_sent_has_no_value_of_a_key_that_names_a_secret() -> None:
    shown = TrackingHooks()._clean({"encoder": {"password": "word", "name": "x"}, "token": ["word"]})
    assert shown == {"encoder": {"password": "***", "name": "x"}, "token": ["***"]}
