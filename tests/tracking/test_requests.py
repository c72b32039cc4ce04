"""What is sent to MLflow, request by request, and which addresses of a tracking server are accepted."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from mm_ldlm.app.tracking import mlflow as tracking
from mm_ldlm.app.tracking.config import TrackingConfig
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError


class Client:
    """A client that records its calls in order; `answers` are returned by the methods of these names."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.calls = answers, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def method(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            answer = self.answers.get(name)
            return answer(*given, **named) if callable(answer) else answer

        return method


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`client(**answers)` replaces the client; every request has to name the address `uri`."""

    def make(**answers: Any) -> Client:
        made = Client(**answers)

        def connect(uri: str) -> Client:
            assert uri == "uri"
            return made

        monkeypatch.setattr(tracking, "client", connect)
        return made

    return make


@pytest.mark.parametrize("known", [None, {}, {"mlflow.experimentKind": "own"}])
def test_a_run_is_opened_in_its_experiment_with_all_of_its_parameters(known: Any, client: Any) -> None:
    found = None if known is None else SimpleNamespace(experiment_id="7", tags=known)
    run = SimpleNamespace(info=SimpleNamespace(run_id="an id"))
    made = client(get_experiment_by_name=found, create_experiment="8", create_run=run)
    parameters = {f"k{i}": i for i in range(201)} | {"uri": "http://me:secret@h/x"}
    assert (
        tracking.open_run("uri", experiment="e", name="n", parameters=parameters, tags={"a": "b"}, parent="p")
        == "an id"
    )
    names = [name for name, _, _ in made.calls]
    experiment = "8" if known is None else "7"
    created, tagged = known is None, known is None or "mlflow.experimentKind" not in known
    assert names == [
        "get_experiment_by_name", *["create_experiment"] * created, *["set_experiment_tag"] * tagged, "create_run",
        *["log_batch"] * 3,
    ]  # fmt: skip
    by_name = {name: (given, named) for name, given, named in made.calls}
    assert by_name["get_experiment_by_name"][0] == ("e",)
    if created:
        assert by_name["create_experiment"] == (("e",), {"artifact_location": None}), "a server has its own place"
    if tagged:
        assert by_name["set_experiment_tag"][0] == (experiment, "mlflow.experimentKind", "custom_model_development")
    assert by_name["create_run"] == (
        (experiment,), {"tags": {"a": "b", "mlflow.parentRunId": "p"}, "run_name": "n"}
    )  # fmt: skip
    batches = [(given, named["params"]) for name, given, named in made.calls if name == "log_batch"]
    assert [(given, len(params)) for given, params in batches] == [(("an id",), size) for size in (100, 100, 2)]
    sent = {param.key: param.value for _, params in batches for param in params}
    assert sent == {**{f"k{i}": str(i) for i in range(201)}, "uri": "http://***@h/x"}


def test_metrics_are_finite_numbers_under_the_names_of_their_groups(client: Any, monkeypatch: Any) -> None:
    made = client()
    monkeypatch.setattr(tracking, "time", SimpleNamespace(time=lambda: 12.3456))
    values = {"a.b": 1, "c.d": 2.5, "e": math.nan, "f": -math.inf, "g": "text", "h": None, "i": {"value": 1.0}}
    tracking.log_metrics("uri", "an id", values, step=5, first=("c.d",))
    ((name, given, named),) = made.calls
    assert (name, given) == ("log_batch", ("an id",))
    sent = [(metric.key, metric.value, metric.timestamp, metric.step) for metric in named["metrics"]]
    assert sent == [("4_evaluation/a/b", 1.0, 12345, 5), ("1_headline/c.d", 2.5, 12345, 5)]


@pytest.mark.parametrize(("tags", "name"), [({}, None), ({"a": "/x/y/z"}, None), ({}, "n"), ({"a": "b" * 7000}, "n")])
def test_tags_and_a_name_are_set_where_there_are_any(tags: dict[str, str], name: str | None, client: Any) -> None:
    made = client()
    tracking.annotate("uri", "an id", tags, name=name)
    found = [(call, given, {key: value for key, value in named.items() if key != "tags"},
              {tag.key: tag.value for tag in named.get("tags", ())}) for call, given, named in made.calls]  # fmt: skip
    shown = {key: "…/z" if value == "/x/y/z" else value[:6000] for key, value in tags.items()}
    expected = [("log_batch", ("an id",), {}, shown)] if tags else []
    assert found == expected + ([("update_run", ("an id",), {"name": "n"}, {})] if name else [])


@pytest.mark.parametrize("profile", ["", '{"train": 3}'])
def test_datasets_are_inputs_with_their_digest_and_context(profile: str, client: Any) -> None:
    made = client()
    digests = {"data/05": "d" * 50, "records": "r"}
    tracking.log_datasets("uri", "an id", digests, context="train, test", profile=profile)
    ((name, (run_id, inputs), _),) = made.calls
    assert (name, run_id) == ("log_inputs", "an id")
    for each, (about, digest) in zip(inputs, digests.items(), strict=True):
        found = each.dataset
        assert (found.name, found.digest, found.source_type) == (about, digest[:36], "local")
        assert json.loads(found.source) == {"uri": about}
        assert found.profile == (profile or None)
        assert [(tag.key, tag.value) for tag in each.tags] == [("mlflow.data.context", "train, test")]


def test_other_runs_of_the_experiment_are_counted_by_their_tags(client: Any) -> None:
    run = SimpleNamespace(info=SimpleNamespace(experiment_id="7"))
    others = [SimpleNamespace(info=SimpleNamespace(run_id=run_id)) for run_id in ("x", "an id", "y")]
    made = client(get_run=run, search_runs=others)
    assert tracking.count_runs("uri", "an id", {"run_folder": "r", "pipelines": "p"}) == 2
    assert made.calls == [
        ("get_run", ("an id",), {}),
        ("search_runs", (["7"], "tags.`run_folder` = 'r' and tags.`pipelines` = 'p'"), {}),
    ]


@pytest.mark.parametrize(("reason", "tag"), [(None, None), ("", None), ("at /a/b/c", "at …/c"), ("x" * 7000, None)])
def test_a_run_is_closed_with_its_status_and_its_reason(reason: Any, tag: str | None, client: Any) -> None:
    made = client()
    tracking.close_run("uri", "an id", status="FAILED", reason=reason)
    tags = [("set_tag", ("an id", "reason", tag or "x" * 6000), {})] if reason else []
    assert made.calls == [*tags, ("set_terminated", ("an id",), {"status": "FAILED"})]


def test_events_and_previews_become_tags(client: Any) -> None:
    made = client()
    tracking.log_lines("uri", "an id", [
        {"event": "preview", "step": 1, "original": None, "text": "from noise"},
        {"event": "preview", "step": 2, "original": "a", "text": "b", "seconds": 1.0},
        {"event": "checkpoint", "step": 3},
        {"event": "skip", "step": 4, "reason": "why"},
    ])  # fmt: skip
    assert made.calls == [
        ("set_tag", ("an id", "preview", "from noise"), {}),
        ("set_tag", ("an id", "preview", "a → b"), {}),
        ("set_tag", ("an id", "last_event", "{'event': 'skip', 'step': 4, 'reason': 'why'}"), {}),
    ]


def test_metrics_are_read_under_their_keys_and_an_unknown_run_has_none(client: Any) -> None:
    metrics = {"1_headline/loss": 2.0, "4_evaluation/l2t/bleu.low": 1.0}
    made = client(get_run=SimpleNamespace(data=SimpleNamespace(metrics=metrics)))
    assert tracking.read_metrics("uri", "an id") == {"loss": 2.0, "l2t.bleu.low": 1.0}
    assert made.calls == [("get_run", ("an id",), {})]

    def refuse(run_id: str) -> Any:
        raise MlflowException("no such run")

    client(get_run=refuse)
    assert tracking.read_metrics("uri", "an id") == {}


def test_a_text_is_an_artifact_under_its_file_name(client: Any) -> None:
    made = client()
    tracking.log_text("uri", "an id", "<html>", file="report.html")
    assert made.calls == [("log_text", ("an id", "<html>", "report.html"), {})]


@pytest.mark.parametrize(
    ("uri", "place"),
    [("sqlite:////a/b/m.db", "file:///a/b/mlartifacts"), ("http://h:5000", None), ("databricks", None)],
)
def test_artifacts_lie_beside_a_database_in_a_file(uri: str, place: str | None) -> None:
    assert tracking._artifacts(uri) == place


@pytest.mark.parametrize(
    ("uri", "fits"),
    [
        ("sqlite:///data/m.db", True), ("sqlite:////srv/m.db", True), ("http://host:5000", True),
        ("https://host/x", True), ("file:///srv/runs", True), ("databricks", True), ("databricks://profile", True),
        ("postgresql+psycopg2://host/db", True), ("mysql://host/db", True), ("mlruns", True), ("a/b.c-d", True),
        ("ftp://host/x", False), ("sqlite:", False), ("http://", False), ("", False), ("two words", False),
        ("http://me:s3cret@host", False), ("https://host/x?token=s3cret", False),
    ],
)  # fmt: skip
def test_addresses_of_a_tracking_store(uri: str, fits: bool) -> None:
    section = {"enabled": True, "experiment": "e", "uri": uri}
    if fits:
        assert parse(TrackingConfig, section, at="tracking").uri == uri
        return
    with pytest.raises(ConfigurationError, match=r"tracking(\.uri)?'") as refused:
        parse(TrackingConfig, section, at="tracking")
    assert "s3cret" not in str(refused.value)
