"""Every diagnostic, address and kind that the tracking knows by name; texts of others that it masks and escapes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mm_ldlm.app.tracking.description import by_pipeline, name_of, without_paths
from mm_ldlm.app.tracking.outlook import outlook

from mm_ldlm.app.tracking import follower, mlflow, names, progress, record, source
from mm_ldlm.app.tracking.config import TrackingConfig
from mm_ldlm.core.config import parse
from mm_ldlm.core.errors import ConfigurationError

GROUPS = ("grad_norm", "param_norm", "update_ratio", "grad_zeros", "grad_nonfinite", "attention_logit_max",
          "activation_rms")  # fmt: skip
"""Diagnostics of each group of parameters or of each block."""


@pytest.mark.parametrize("name", GROUPS)
def test_a_diagnostic_of_a_group_is_one_and_its_sum_is_a_number_of_the_training(name: str) -> None:
    assert names.of_training(f"{name}/blocks.0") == f"5_diagnostics/{name}/blocks.0"
    assert names.of_training(name) == f"2_training/{name}"
    assert names.of_training(f"{name}_of/x") == f"2_training/{name}_of/x"
    assert names.of_training(f"l2t/{name}/x") == f"2_training/l2t/{name}/x"
    assert names.of_training(f"validation/{name}/x") == f"3_validation/{name}/x"


@pytest.mark.parametrize("name", ["memory_peak_gib", "fp16_scale", "fp16_underflow"])
def test_numbers_of_the_machine_are_diagnostics(name: str) -> None:
    assert names.of_training(name) == f"5_diagnostics/{name}"
    assert names.key_of(f"5_diagnostics/{name}") == name


def test_a_key_of_the_evaluation_keeps_the_dots_and_slashes_after_its_first() -> None:
    assert names.of_evaluation("sts.a/b.c") == "4_evaluation/sts/a/b.c"
    assert names.key_of("4_evaluation/perplexity") == "perplexity"
    assert names.of_evaluation("perplexity", first=["perplexity"]) == "1_headline/perplexity"
    assert names.of_evaluation("perplexity") == "4_evaluation/perplexity"


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [*(f"{scheme}://host/x" for scheme in ("http", "https", "mysql", "postgresql", "mssql", "databricks", "uc")),
     *(f"{scheme}+driver2://host/x" for scheme in ("mysql", "postgresql", "mssql")), "sqlite:///x.db", "file:///x",
     "databricks", "a/b-c.d"],
)  # fmt: skip
def test_every_kind_of_store_that_mlflow_reads_is_accepted(uri: str) -> None:
    section = {"enabled": True, "experiment": "e", "uri": uri}
    found = parse(TrackingConfig, section, at="tracking")
    assert (found.uri, found.run_name, found.parent_run) == (uri, None, None)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gopher://host", "expected the address of an MLflow server or database (sqlite:///FILE, http://HOST:PORT, "
         "...), found 'gopher://host'"),
        ("https+x://host", "expected the address of an MLflow server or database (sqlite:///FILE, http://HOST:PORT, "
         "...), found 'https+x://host'"),
        ("https://me@host", "expected an address without user, password or token, found https://***@host, because the "
         "address is stored with every run. Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
         "MLFLOW_TRACKING_TOKEN, in the environment"),
    ],
)  # fmt: skip
def test_an_address_that_is_refused_is_shown_without_its_user(uri: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse(TrackingConfig, {"enabled": True, "experiment": "e", "uri": uri}, at="tracking")
    assert str(error.value) == f"parameter 'tracking.uri': {words}."


# -- texts of others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MlflowException, OSError])
def test_an_answer_with_a_password_is_masked(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise error("no answer from http://me:sentinel@other/x")

    monkeypatch.setattr(mlflow, "client", lambda uri: SimpleNamespace(get_experiment_by_name=refuse))
    with pytest.raises(ConfigurationError) as found:
        mlflow.open_run("http://me:sentinel@h", experiment="e", name="n", parameters={}, tags={})
    assert str(found.value) == (
        "parameter 'tracking.uri': MLflow cannot open http://***@h (no answer from http://***@other/x). Start the "
        "server, correct the address, or set tracking.enabled to false."
    )


def test_the_reason_of_an_error_has_no_control_characters() -> None:
    assert mlflow.reason_of(ValueError("a\x1b[31mb\x07  c\n\ud800")) == "ValueError: a\\x1b[31mb\\x07 c \\ud800"


def test_a_sentence_of_a_preview_has_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    tags: list[Any] = []
    monkeypatch.setattr(mlflow, "client", lambda uri: SimpleNamespace(set_tag=lambda *given: tags.append(given)))
    mlflow.log_lines("u", "r", [{"event": "preview", "step": 1, "original": "see /srv/a/b", "text": "http://me:pw@h"}])
    mlflow.log_lines("u", "r", [{"event": kind, "step": 1} for kind in ("start", "checkpoint", "estimate", "alert")])
    assert tags == [("r", "preview", "see …/b → http://***@h"), ("r", "last_event", "{'event': 'alert', 'step': 1}")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("C:/Users/me/x.txt", "…/x.txt"), ("a=/x/y;b=(/p/q),[/r/s]", "a=…/y;b=(…/q),[…/s]"), ("'/a b/c/d'", "'/a b/c/d'"),
     ("{/a/b}", "{…/b}"), ("~/a/b a/b/c ./a/b ../a/b", "~/a/b a/b/c ./a/b ../a/b"), ("/a", "/a"), ("/a/b", "…/b"),
     ("-/a/b", "-/a/b"), ("s3://bucket/a/b", "s3://bucket/a/b"), ("sqlite:////a/b/c.db,x=/d/e", "sqlite:///…/c.db,x=…/e")],
)  # fmt: skip
def test_an_absolute_path_ends_where_a_value_does(text: str, shown: str) -> None:
    assert without_paths(text) == shown


# -- what runs ---------------------------------------------------------------------------------------------------------


def test_sources_are_named_once_in_their_order() -> None:
    sources = [SimpleNamespace(kind=kind) for kind in ("text", "csv", "text", "hub", "csv", "arrow")]
    typed = {"ingestion": SimpleNamespace(sources=sources)}
    (first, *_) = outlook({"ingestion": ["a"]}, typed, seconds={}, results={}, project=Path("/p"))
    assert first == "this run: ingestion (text, csv, hub, arrow); 1 node"


def test_only_what_the_parameters_contain_is_described() -> None:
    """A section may be missing where a part of a configuration is described."""
    encoder = SimpleNamespace(kind="local", name="minilm")
    training = SimpleNamespace(max_steps=5, epochs=None, max_tokens=None, max_minutes=None)
    for pipeline, typed in (
        ("ingestion", {"encoder": encoder}), ("embedding", {"training": training}), ("reporting", {"encoder": encoder}),
        ("training", {"training": training}),
        ("training", {"training": training, "model": SimpleNamespace(kind="m")}),
    ):  # fmt: skip
        found = outlook({pipeline: ["a"]}, typed, seconds={pipeline: 3.0}, results={}, project=Path("/p"))
        assert found == [f"this run: {pipeline}; 1 node", "results: ", "time: the last run here took 3 s"]


def test_a_pipeline_that_the_main_job_does_not_have_is_whole() -> None:
    assert name_of({"mine": ["mine.a", "mine.b"]}, {}, ["training"]) == "mine"
    nodes = [SimpleNamespace(name="x.a", tags={"x", "y"}), SimpleNamespace(name="y.b", tags={"y"})]
    assert by_pipeline(nodes, ["y", "z", "x"]) == {"y": ["x.a", "y.b"], "x": ["x.a"]}
    assert list(by_pipeline(nodes, ["y", "z", "x"])) == ["y", "x"]


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*given: Any, **how: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "git")

    monkeypatch.setattr(subprocess, "run", absent)
    assert source.commit(tmp_path) == {}


def test_a_run_beyond_its_last_step_is_still_shown(caplog: pytest.LogCaptureFixture) -> None:
    """As after `max_steps` was lowered."""
    caplog.set_level("INFO", logger=progress.__name__)
    sink = progress.ProgressSink(10, quiet_seconds=1e9)
    sink._last = 1e12
    for step in (9, 10, 11):
        sink.take([{"step": step, "lr": 0.1}])
    assert [message.split(" · ")[0] for message in caplog.messages] == ["step 10/10", "step 11/10"]


def test_of_several_sinks_only_the_broken_one_is_removed(tmp_path: Path) -> None:
    class Counting:
        def __init__(self, breaks: bool) -> None:
            self.breaks, self.taken, self.closed = breaks, 0, 0

        def take(self, lines: Any) -> None:
            self.taken += 1
            if self.breaks:
                raise OSError("broken")

        def close(self) -> None:
            self.closed += 1

    sinks = [Counting(breaks) for breaks in (True, False, True, False)]
    path = tmp_path / "log.jsonl"
    path.touch()
    following = follower.Follower(path, sinks, interval=0.01)
    with following:
        following._pass_on([{"step": 1}])
        following._pass_on([{"step": 2}])
    assert [sink.taken for sink in sinks] == [1, 2, 1, 2]
    assert [sink.closed for sink in sinks] == [0, 1, 0, 1]


def test_a_record_of_two_datasets_and_runs_describes_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: list[Any] = []
    monkeypatch.setattr(record, "mlflow", SimpleNamespace(
        annotate=lambda uri, run_id, given, name=None: tags.append((uri, run_id, dict(given), name)),
        log_text=lambda *given, **how: None, log_datasets=lambda *given, **how: None, count_runs=lambda *given: 0,
    ))  # fmt: skip
    (tmp_path / "config.json").write_text('{"model": {"kind": "m"}, "objective": {"kind": "o"}}')
    made = record.Record("u", "r", project=tmp_path, name="n", pipelines="all", command="c")
    assert not made.has_dataset("one")
    for name, fingerprint in (("a", "one"), ("a", "one"), ("b", "two")):
        made.add_dataset(name, fingerprint, {"records": f"r-{fingerprint}"}, examples={"train": 2})
        assert made.has_dataset(fingerprint)
    for name in ("run-1", "run-1", "run-2"):
        made.add_run({"name": name, "fingerprint": "f", "step": 3, "checkpoint": "c-3"}, tmp_path, trained=True)
    made.describe()
    assert [(uri, run_id) for uri, run_id, _, _ in tags] == [("u", "r")] * 5
    assert [given.get("dataset_fingerprint") for _, _, given, _ in tags] == ["one", "two", None, None, None]
    assert [name for *_, name in tags] == [None, None, "n run-1", "n run-2", None]
    assert tags[-1][2] == {record.NOTE: (
        "Trained `m` with the objective `o` for 3 steps. Ran all.\n\n`c`\n\n| | |\n| --- | --- |\n"
        "| dataset | b, fingerprint two, examples: 2 train |\n| run | run-2, fingerprint f, c-3 |"
    )}  # fmt: skip
