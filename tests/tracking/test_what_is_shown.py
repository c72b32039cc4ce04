"""What a run shows of itself: descriptions without paths, the first lines of its log, and lines on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from mm_ldlm.app.tracking.description import by_pipeline, clean, command, name_of, without_paths
from mm_ldlm.app.tracking.outlook import outlook

from mm_ldlm.app.tracking import progress, record
from mm_ldlm.app.tracking.progress import sentence


def test_lists_and_mappings_inside_others_lose_the_folders_of_the_project() -> None:
    project = Path("/home/me/project")
    value = {"a": [{"b": ("/home/me/project/x/y", "/srv/a/z")}], "c": {"d": "/home/me/project/e"}, 1: 2.5,
             "list": [{"api_key": "s3cret"}]}  # fmt: skip
    assert clean(value, project=project) == {
        "a": [{"b": ["x/y", "…/z"]}], "c": {"d": "e"}, "1": 2.5, "list": [{"api_key": "***"}]
    }  # fmt: skip
    assert clean([None, True], project=project) == [None, True]


def test_the_words_of_a_command_are_quoted_for_a_shell() -> None:
    project = Path("/home/me/project")
    line = ["/bin/kedro", "run", "--params", "a=b c,d=/home/me/project/x", "--env=e"]
    assert command(line, project=project) == "kedro run --params 'a=b c,d=x' --env=e"
    assert (
        without_paths("at C:/Users/me/file.txt and ~/x/y and http://h/a/b")
        == "at …/file.txt and ~/x/y and http://h/a/b"
    )


def test_nodes_are_listed_by_the_pipelines_of_their_tags_in_the_order_of_these() -> None:
    nodes = [SimpleNamespace(name=name, tags=set(tags)) for name, tags in
             (("a.x", ["a"]), ("b.y", ["b", "other"]), ("a.z", ["a"]), ("d.w", ["d"]))]  # fmt: skip
    assert by_pipeline(nodes, ("b", "c", "a")) == {"b": ["b.y"], "a": ["a.x", "a.z"]}
    assert list(by_pipeline(nodes, ("b", "c", "a"))) == ["b", "a"]
    assert name_of({"a": ["a.x", "a.z"]}, {"a": ["a.x", "a.z", "a.q"]}, ["a"]) == "a (x, z)"
    assert name_of({"b": ["b.y"], "a": ["a.x"]}, {}, ["a", "b"]) == "b,a", "another order is not the main job"


def test_a_run_of_unknown_parts_is_described_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: dict[str, str] = {}
    monkeypatch.setattr(record, "mlflow", SimpleNamespace(
        annotate=lambda uri, run_id, given, name=None: tags.update(given | {"name": str(name)}),
        log_text=lambda *given, **how: None, count_runs=lambda *given: pytest.fail("the user chose the name"),
    ))  # fmt: skip
    (tmp_path / "config.json").write_text('{"model": null, "objective": {"kind": "x"}}')
    made = record.Record("u", "r", project=tmp_path, name=None, pipelines="sampling", command="c")
    made.describe()
    assert tags.pop(record.NOTE) == "Runs sampling.\n\n`c`"
    made.add_run({"name": "run-1"}, tmp_path, trained=False)
    made.describe()
    assert tags.pop(record.NOTE).startswith("Used an unknown kind with the objective `x` for  steps. Ran sampling.")
    assert tags == {
        "run_folder": "run-1", "pipelines": "sampling", "run_fingerprint": "", "step": "", "checkpoint": "",
        "trained_here": "false", "name": "None",
    }  # fmt: skip


@pytest.mark.parametrize(("seconds", "listed"), [(0.999, False), (1.0, True), (1.4, True)])
def test_pipelines_of_a_second_or_more_are_listed(seconds: float, listed: bool) -> None:
    found = outlook({"a": ["x"], "b": ["y"]}, {}, seconds={"a": seconds, "b": 30.0}, results={}, project=Path("/p"))
    assert found[2] == f"time: the last run here took 31 s (b 30 s{', a 1 s' if listed else ''})"


def test_names_in_the_first_lines_stay_short_and_on_one_line() -> None:
    typed = {"encoder": SimpleNamespace(kind="local", name="a\nb" + "x" * 300)}
    (first, *_) = outlook({"embedding": ["x"]}, typed, seconds={}, results={}, project=Path("/p"))
    assert len(first) < 130
    assert first.startswith("this run: embedding (a\\nbxxx")
    plain = {"encoder": SimpleNamespace(kind="http")}
    assert "embedding (http)" in outlook({"embedding": ["x"]}, plain, seconds={}, results={}, project=Path("/p"))[0]


def test_both_sentences_of_a_preview_stay_short_and_an_empty_one_is_none_from_noise() -> None:
    long = sentence({"step": 3, "original": "o" * 900, "text": "t" * 900})
    assert len(long) == len("step 3 rebuilds  → ") + 2 * len("… ") + 2 * 161, "160 characters of each"
    assert sentence({"step": 3, "original": "", "text": "t"}) == "step 3 rebuilds '' → 't'"


def test_a_line_on_a_terminal_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a line break, a terminal shows what was flushed."""
    written: list[str] = []
    stderr = SimpleNamespace(isatty=lambda: True, write=written.append, flush=lambda: written.append("flushed"))
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    sink = progress.ProgressSink(9)
    sink.take([{"step": 1, "lr": 0.1}])
    assert (len(written), written[0].startswith("\r\x1b[2Kstep 1/9"), written[1]) == (2, True, "flushed")
    sink.close()
    sink.close()
    assert written[2:] == ["\n", "flushed"]


def test_events_and_metrics_of_one_batch_are_all_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.tracking.progress")
    sink = progress.ProgressSink(3)
    skip = {"event": "skip", "step": 2, "reason": "why"}
    sink.take([skip, {"step": 2, "loss": 1.0, "lr": 0.1}, {**skip, "step": 3}, {"step": 3, "loss": 2.0, "lr": 0.1}])
    first, second, third = caplog.messages
    assert (first, second) == ("step 2: skip why", "step 3: skip why")
    assert third.startswith("step 3/3 · loss 2.0000 (smoothed 1.1000)")


@pytest.mark.parametrize("kind", ["estimate", "preview", "skip"])
def test_a_sentence_begins_on_a_line_of_its_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stderr = SimpleNamespace(isatty=lambda: True, write=written.append, flush=lambda: None)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    monkeypatch.setattr(progress, "log", SimpleNamespace(
        info=lambda *given: written.append("logged"), warning=lambda *given: written.append("logged")))  # fmt: skip
    sink = progress.ProgressSink(9)
    sink.take([{"step": 1, "lr": 0.1}])
    sink.take([{"event": kind, "step": 1, "text": "t", "time": 0.0, "seconds_left": 5.0, "seconds_per_step": 1.0,
                "measured_steps": 3}])  # fmt: skip
    assert written[1:] == ["\n", "logged"]


@pytest.mark.parametrize(
    ("executed", "measured"),
    [(["training"], "training"), (["embedding"], "embedding"), (["training", "embedding"], "embedding and training"),
     (["sampling"], None)],
)  # fmt: skip
def test_a_first_run_names_what_will_show_an_estimate(executed: list[str], measured: str | None) -> None:
    found = outlook({name: ["node"] for name in executed}, {}, seconds={"other": 3.0}, results={}, project=Path("/p"))
    assert found[0] == f"this run: {' → '.join(executed)}; {len(executed)} node{'s' * (len(executed) > 1)}"
    words = f"time: no run here yet; {measured} will show an estimate after the first seconds"
    assert found[2:] == ([] if measured is None else [words])


def test_a_configuration_is_sent_without_the_folders_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, str] = {}
    monkeypatch.setattr(record, "mlflow", SimpleNamespace(
        annotate=lambda *given, name: None, count_runs=lambda *given: 0,
        log_text=lambda uri, run_id, text, *, file: sent.update({file: json.loads(text)}),
    ))  # fmt: skip
    config = {"training": {"init_from": f"{tmp_path}/data/run", "api_key": "s3cret"}, "tracking": {"uri": "u"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = record.Record("u", "r", project=tmp_path, name="n", pipelines="all", command="c")
    made.add_run({"name": "run-1"}, tmp_path, trained=True)
    assert sent == {"config.json": {"training": {"init_from": "data/run", "api_key": "***"}}}
