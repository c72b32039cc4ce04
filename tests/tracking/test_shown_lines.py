"""Lines, names and descriptions of runs with numbers that all differ; what is shown, kept and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mm_ldlm.app.tracking.description import clean, name_of, note, without_paths

from mm_ldlm.app.tracking import names, record
from mm_ldlm.app.tracking.progress import _EVENTS_SHOWN, ProgressSink, progress_line
from mm_ldlm.training import jsonl
from mm_ldlm.training.jsonl import JsonlTracker, number, read_metrics

LINE = {
    "step": 30, "loss": 1.23456, "lr": 2.5e-3, "grad_norm": 0.625, "tokens_per_second": 12345.6, "seconds_left": 3725.9,
    "skipped": 7,
}  # fmt: skip


def test_the_progress_line() -> None:
    assert progress_line(LINE, max_steps=100, smoothed=1.5) == (
        "step 30/100 · loss 1.2346 (smoothed 1.5000) · lr 2.50e-03 · grad 0.625 · 12,346 tokens/s · 1:02:05 left · "
        "7 skipped"
    )
    short = progress_line({"step": 1, "loss": "nan", "seconds_left": 61.0, "lr": "inf"}, max_steps=2, smoothed=None)
    assert short == (
        "step 1/2 · loss – (smoothed –) · lr inf · grad – · – tokens/s · 1:01 left · – skipped"
    )  # fmt: skip


def test_lines_without_a_learning_rate_are_not_shown_and_the_last_step_always(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.tracking.progress")
    sink = ProgressSink(30, quiet_seconds=1e9)
    sink._last = 1e12
    sink.take([{**LINE, "step": 29}])
    sink.take([{"step": 30, "loss": 1.0}])
    assert not caplog.records
    sink.take([{**LINE, "step": 29}, LINE])
    assert [record.message.split(" · ")[0] for record in caplog.records] == ["step 30/30"]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [*((kind, True) for kind in ("skip", "rollback", "checkpoint_failed", "checkpoint_damaged", "ended_early",
                                 "resume_differs", "alert")),
     *((kind, False) for kind in ("spike", "checkpoint", "trains", "preflight", "start"))],
)  # fmt: skip
def test_events_that_need_attention_are_shown(kind: str, shown: bool, caplog: pytest.LogCaptureFixture) -> None:
    ProgressSink(9).take([{"event": kind, "step": 5, "reason": "the reason"}])
    assert ("step 5" in caplog.text and "the reason" in caplog.text) == shown == (kind in _EVENTS_SHOWN)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, 1.0), (3, 3.0), (2.5, 2.5), ("nan", "nan"), ("inf", float("inf")), ("-inf", float("-inf")), ("2.5", None),
     (None, None), ([1], None)],
)  # fmt: skip
def test_logged_values_as_numbers(value: Any, expected: Any) -> None:
    found = number(value)
    assert (found != found) if expected == "nan" else found == expected


def test_steps_after_the_one_that_a_run_went_back_to_are_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tracker = JsonlTracker(path)
    for step in (10, 20, 30):
        tracker.metrics(step, {"loss": step})
    tracker.event(20, "went_back")
    assert [line["step"] for line in read_metrics(path)] == [10, 20], "the step itself stays"
    tracker.metrics(30, {"loss": 99})
    tracker.event(30, "rollback", to_step=10)
    tracker.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(10, 10), (20, 20), (30, 99)]
    assert jsonl._plain({"a": (float("inf"), -float("inf")), 3: float("nan")}) == {"a": ["inf", "-inf"], "3": "nan"}


NAMES = {
    "loss": "1_headline/loss", "validation/loss": "1_headline/validation_loss",
    "tokens_per_second": "1_headline/tokens_per_second", "l2t/text_loss": "2_training/l2t/text_loss",
    "lr": "2_training/lr", "validation/a/text_loss": "3_validation/a/text_loss",
    "grad_norm": "2_training/grad_norm", "grad_norm/block0": "5_diagnostics/grad_norm/block0",
    "fp16_scale": "5_diagnostics/fp16_scale", "memory_peak_gib": "5_diagnostics/memory_peak_gib",
}  # fmt: skip


@pytest.mark.parametrize(("key", "name"), NAMES.items())
def test_names_of_the_training_log(key: str, name: str) -> None:
    assert names.of_training(key) == name
    assert names.key_of(name) == key


@pytest.mark.parametrize("first", [True, False])
def test_names_of_the_evaluation(first: bool) -> None:
    name = names.of_evaluation("l2t.bleu.low", first=["l2t.bleu.low"] if first else ["other"])
    assert name == ("1_headline/l2t.bleu.low" if first else "4_evaluation/l2t/bleu.low")
    assert names.key_of(name) == "l2t.bleu.low"
    assert names.key_of("old_name") == "old_name"
    assert names.MOST_HEADLINES == 7


def test_the_description_of_a_run() -> None:
    text = note(
        summary="S", command="kedro run", facts={"run": "a", "dataset": "b"}, headline={"x": 0.123456, "y": 12345}
    )
    assert text == (
        "S\n\n`kedro run`\n\n| headline number | value |\n| --- | --- |\n| x | 0.1235 |\n| y | 1.234e+04 |\n\n| | |\n"
        "| --- | --- |\n| run | a |\n| dataset | b |"
    )
    assert note(summary="S", command="c", facts={}, headline={}) == "S\n\n`c`"


def test_the_name_of_what_runs() -> None:
    whole = {"a": ["a.one", "a.two", "a.three", "a.four"], "b": ["b.x"]}
    assert name_of(whole, whole, ["a", "b"]) == "all"
    assert name_of({"a": whole["a"]}, whole, ["a", "b"]) == "a"
    assert name_of({"a": whole["a"][:2], "b": ["b.x"]}, whole, ["a", "b"]) == "a (one, two),b"
    assert name_of({"a": whole["a"][:3]}, whole, ["a"]) == "a (3 of 4 nodes)"


def test_paths_outside_the_project_lose_their_folders() -> None:
    project = Path("/home/me/project")
    assert without_paths("/home/me/project/data/x", project=project) == "data/x"
    assert without_paths("--a=/srv/data/file.txt http://host/path/x") == "--a=…/file.txt http://host/path/x"
    assert without_paths("sqlite:////srv/data/m.db") == "sqlite:///…/m.db"
    assert clean({"a": ["/x/y/z"], "password": "p", "n": 3}, project=project) == {
        "a": ["…/z"],
        "password": "***",
        "n": 3,
    }


class Server:
    """MLflow as a list of the calls to it."""

    def __init__(self, runs: int) -> None:
        self.runs, self.tags, self.names, self.texts, self.datasets = runs, {}, [], {}, []  # type: ignore[var-annotated]
        self.metrics: list[Any] = []

    def annotate(self, uri: str, run_id: str, tags: Any, *, name: str | None = None) -> None:
        self.tags |= tags
        self.names.append(name)

    def count_runs(self, uri: str, run_id: str, tags: Any) -> int:
        self.counted = tags
        return self.runs

    def log_text(self, uri: str, run_id: str, text: str, *, file: str) -> None:
        self.texts[file] = json.loads(text)

    def log_datasets(self, uri: str, run_id: str, datasets: Any, *, context: str, profile: str = "") -> None:
        self.datasets.append((dict(datasets), context, profile))

    def log_metrics(self, uri: str, run_id: str, metrics: Any, *, first: Any) -> None:
        self.metrics.append((dict(metrics), list(first)))


@pytest.mark.parametrize(("runs", "trained"), [(0, True), (2, False)])
def test_every_tag_of_a_run(runs: int, trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(runs)
    monkeypatch.setattr(record, "mlflow", server)
    config = {"model": {"kind": "m"}, "objective": {"kind": "o", "mode": "x"}, "tracking": {"uri": "u"}, "seed": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = record.Record("uri", "id", project=tmp_path, name="first", pipelines="training", command="kedro run")
    reference = {"name": "run-a", "fingerprint": "f", "step": 12, "checkpoint": "step-12"}
    stores = {"records": "r", "tokens": "t"}
    for _ in range(2):
        made.add_run(reference, tmp_path, trained=trained)
        made.add_dataset("data", "d", stores, examples={"train": 3000, "test": 20})
    made.add_metrics({"a": 1.5, "b": 2.5, "made_by": {"run": "/x/y/z"}}, first=["b"])
    made.describe()
    assert server.counted == {"run_folder": "run-a", "pipelines": "training"}
    text = server.tags.pop(record.NOTE)
    assert server.tags == {
        "run_folder": "run-a", "pipelines": "training", "run_fingerprint": "f", "step": "12", "checkpoint": "step-12",
        "trained_here": str(trained).lower(), "dataset_fingerprint": "d", "fingerprint.records": "r",
        "fingerprint.tokens": "t",
    }  # fmt: skip
    assert server.names == ["first run-a" + (" (3)" if runs else ""), None, None]
    assert server.texts == {
        "config.json": {key: value for key, value in config.items() if key != "tracking"},
        "metrics.json": {"a": 1.5, "b": 2.5, "made_by": {"run": "…/z"}},
    }
    assert server.datasets == [
        ({"data": "d"}, "train, test", '{"train": 3000, "test": 20}'), (stores, "store of the dataset", "")
    ]  # fmt: skip
    assert server.metrics == [({"a": 1.5, "b": 2.5, "made_by": {"run": "/x/y/z"}}, ["b"])]
    done = "Trained" if trained else "Used"
    assert text.startswith(f"{done} `m` with the objective `o` (x) for 12 steps. Ran training.\n\n`kedro run`")
    for words in ("| b | 2.5 |", "| run | run-a, fingerprint f, step-12 |",
                  "| dataset | data, fingerprint d, examples: 3,000 train, 20 test |"):  # fmt: skip
        assert words in text
    assert "| a |" not in text
