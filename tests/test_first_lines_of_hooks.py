"""What the hooks pass on before the first node: the checks, the places of the results, the names of what runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from mm_ldlm.app.hooks.names import FILES, ORDER, PIPELINES
from mm_ldlm.app.hooks.refusals import refuse_concurrent
from mm_ldlm.app.hooks.seconds import PipelineSeconds

import mm_ldlm.app.parameters
from mm_ldlm.app.datasets import RunDataset
from mm_ldlm.app.hooks import ProjectHooks, first_run, project, tracked
from mm_ldlm.core.errors import ConfigurationError

RUN: dict[str, Any] = {"run_id": "2026", "env": "test", "pipeline_names": None}


def step(name: str, tag: str, reads: Any, writes: Any) -> Any:
    return node(lambda *given: given, reads, writes, name=name, tags=tag, namespace=tag)


PLAN = step("plan_training", "training", "params:training", "training_spec")
TRAIN = step("run_training", "training", "training_spec", "run")
SAMPLE = step("sample", "sampling", "run", "samples")
REPORT = step("write", "reporting", "samples", "report")
COMPARE = step("compare", "comparison", "comparison_outcomes", "comparison_report")
CHECK = step("check", "sanity", "params:training", "checked")


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectHooks:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"tracking": "mm_ldlm.app.tracking.config:TrackingConfig"})
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    made = ProjectHooks()
    made.after_context_created(SimpleNamespace(project_path=tmp_path))  # type: ignore[arg-type]
    return made


def catalog(root: Path, **more: Any) -> DataCatalog:
    section = {"enabled": False, "uri": "sqlite:///m.db", "experiment": "e"}
    results = root / "mine" / "08_reporting"
    files = {name: JSONDataset(filepath=str(results / f"{name}.json")) for name in ("tracking_reference", "timings")}
    files |= {name: JSONDataset(filepath=str(results / file)) for name, file in FILES.items()}
    runs: Any = JSONDataset(filepath="data/06_models/runs")
    return DataCatalog({"parameters": MemoryDataset({"seed": 0, "tracking": section}), "runs": runs, **files, **more})


@pytest.mark.parametrize(
    ("nodes", "trains"),
    [([PLAN], False), ([TRAIN], True), ([PLAN, TRAIN], True), ([CHECK], True), ([SAMPLE], False)],
)
def test_the_machine_is_checked_for_what_the_run_reads_and_whether_it_trains_here(
    nodes: list[Any], trains: bool, hooks: ProjectHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_files", lambda typed, **how: None)
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_machine", lambda typed, **how: seen.append((set(typed), how)))
    data = catalog(tmp_path)
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline(nodes), catalog=data)
    read = {"training"} if nodes[0] in (PLAN, CHECK) else set()
    assert seen == [({"tracking"}, {"read": read, "trains": trains})]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([TRAIN, SAMPLE, REPORT], {"checkpoints in": "data/06_models/runs", "report": "mine/08_reporting/report.html"}),
        ([TRAIN], {"checkpoints in": "data/06_models/runs"}),
        ([SAMPLE], {"in": "mine"}),
        ([REPORT], {"report": "mine/08_reporting/report.html"}),
        ([COMPARE], {"comparison": "mine/08_reporting/comparison.html"}),
    ],
)
def test_the_results_of_a_run_are_shown_where_they_are_made(
    nodes: list[Any], expected: dict[str, str], hooks: ProjectHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a later node of the run reads."""
    seen: list[Any] = []
    monkeypatch.setattr("mm_ldlm.app.tracking.outlook.outlook", lambda *given, **how: seen.append((given, how)) or [])
    data = catalog(tmp_path)
    data.save("timings", {"training": 3.0})
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline(nodes), catalog=data)
    (((executed, typed), how),) = seen
    assert how == {
        "seconds": {"training": 3.0}, "project": tmp_path,
        "results": {name: tmp_path / path for name, path in expected.items()},
    }  # fmt: skip
    assert set(typed) == {"tracking"}
    assert executed == {tag: [each.name for each in nodes if tag in each.tags] for tag in
                        dict.fromkeys(next(iter(each.tags)) for each in nodes)}  # fmt: skip


def test_the_first_line_lists_the_pipelines_in_the_order_in_which_they_run(
    hooks: ProjectHooks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each pipeline reads what the one before it wrote, and the nodes are given in reverse order."""
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    names = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
    chain = [step("only", name, before, name) for before, name in zip((None, *names), names, strict=False)]
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline(chain[::-1]), catalog=catalog(tmp_path))
    assert [line for line in caplog.messages if line.startswith("this run: ")] == [
        "this run: ingestion → embedding → validation → training → sampling → evaluation → reporting; 7 nodes"
    ]


def test_a_run_that_is_chosen_by_its_path_is_named_with_the_folder_of_its_results(
    hooks: ProjectHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "_of_run", lambda path, typed: {})
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    data = catalog(tmp_path)
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([SAMPLE]), catalog=data)
    assert not [line for line in caplog.messages if line.startswith("run ")]
    data["parameters"] = MemoryDataset({**data.load("parameters"), "run": "elsewhere/run-7"})
    data["run"] = RunDataset(filepath=str(tmp_path / "run.json"), chosen="elsewhere/run-7")
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([SAMPLE]), catalog=data)
    lines = [line for line in caplog.messages if line.startswith("run ")]
    assert lines == [f"run elsewhere/run-7: the results are written to {tmp_path / 'mine'}"]


def test_an_interpreter_that_ends_closes_the_run_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(project.atexit, "register", registered.append)
    made, closed = ProjectHooks(), list[Any]()
    made._tracked = SimpleNamespace(close=lambda status, *, reason: closed.append((status, reason)))  # type: ignore[assignment]
    (on_exit,) = registered
    on_exit()
    assert closed == [("KILLED", None)]


def test_every_report_of_a_run_is_named_at_its_end_in_order(
    hooks: ProjectHooks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([REPORT]), catalog=catalog(tmp_path))
    for name in ("report", "samples", "comparison_report"):
        hooks.after_dataset_saved(name, "<html>", REPORT)
    caplog.clear()
    hooks.after_pipeline_run()
    folder = tmp_path / "mine" / "08_reporting"
    assert caplog.messages[1:] == [f"report: {folder / 'comparison.html'}", f"report: {folder / 'report.html'}"]


def test_a_node_is_logged_with_its_pipeline_before_it_runs(
    hooks: ProjectHooks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    hooks.before_node_run(TRAIN)
    hooks.before_node_run(node(lambda x: x, "a", "b", name="x", tags=["sampling", "other", "embedding"]))
    assert caplog.messages == ["training · run_training", "embedding+sampling · x"]


def test_the_seconds_at_the_end_are_those_of_the_pipelines_in_order_and_together(
    hooks: ProjectHooks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    made = PipelineSeconds({"evaluation": 99.0})
    made._counted = {"sampling", "training"}
    made.all |= {"sampling": 1.26, "training": 61.5}
    hooks._seconds = made
    hooks.after_pipeline_run()
    assert caplog.messages == ["seconds: training 61.5, sampling 1.3; together 63"]


@pytest.mark.parametrize(
    ("nodes", "name"),
    [([PLAN], "training (plan_training)"), ([PLAN, TRAIN], "training"), ([TRAIN, SAMPLE], "training (run_training),"
     "sampling"), ([SAMPLE, REPORT], "sampling,reporting"), ([], "")],
)  # fmt: skip
def test_a_run_of_some_nodes_is_named_by_them(nodes: list[Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        "training": Pipeline([PLAN, TRAIN]),
        "sampling": Pipeline([SAMPLE]),
        "all": Pipeline([PLAN, TRAIN, SAMPLE]),
    }
    monkeypatch.setattr("kedro.framework.project.pipelines", whole)
    assert tracked._executed(Pipeline(nodes)) == name


@pytest.mark.parametrize(("seconds", "first"), [({}, True), ({"evaluation": 1.0}, True), ({"sampling": 1.0}, False),
                                                ({"training": 1.0}, False), ({"validation": 0.0}, False)])  # fmt: skip
def test_a_run_is_the_first_one_where_none_of_its_pipelines_ran_before(
    seconds: dict[str, float], first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run, "measurable", lambda typed: True)
    typed = dict.fromkeys(("model", "objective", "training", "encoder", "tokenizer"))
    executed = ("ingestion", "embedding", "validation", "training", "sampling")
    assert first_run.measures_training(typed, executed, seconds=seconds, runs=tmp_path) == first


def test_the_files_of_the_reports_and_the_order_of_the_pipelines() -> None:
    assert FILES == {"report": "report.html", "comparison_report": "comparison.html"}
    main = ("ingestion", "embedding", "validation", "training", "sampling", "evaluation", "reporting")
    assert (*main, "sanity", "comparison", "export") == ORDER
    assert frozenset(ORDER) == PIPELINES


# -- locks and seconds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "takes"), [("0", True), ("1", False)])
def test_the_first_host_locks_the_folders_for_the_nodes_that_it_runs(
    number: str, takes: bool, hooks: ProjectHooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", number)
    taken: list[Any] = []
    folders = {"results": tmp_path / "data"}
    monkeypatch.setattr(ProjectHooks, "_folders", lambda self: folders)
    hooks._locks.take = lambda *given: taken.append(given)  # type: ignore[method-assign]
    pipeline = Pipeline([TRAIN])
    hooks.before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=catalog(tmp_path))
    assert taken == ([(pipeline, folders)] if takes else [])


def test_a_node_of_two_pipelines_counts_for_both_and_the_pipelines_of_this_run_are_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr("mm_ldlm.app.hooks.seconds.time.perf_counter", lambda: now[0])
    counted = PipelineSeconds({"evaluation": 5.0, "reporting": 3.0})
    both = node(lambda x: x, "a", "b", name="both", tags=["sampling", "evaluation", "other"])
    for each in (both, PLAN):
        counted.count(each)
        now[0] += 2.5
        counted.count(each)
    assert counted.all == {"evaluation": 2.5, "sampling": 2.5, "training": 2.5, "reporting": 3.0}
    assert list(counted.of_this_run()) == ["training", "sampling", "evaluation"]
    assert counted.finished(without={"sampling", "training"}) == {"evaluation": 2.5, "reporting": 3.0}


@pytest.mark.parametrize(
    ("runner", "found"),
    [("ThreadRunner", "ThreadRunner"), ("<kedro.runner.ParallelRunner object at 0x7f>", "ParallelRunner"),
     ("SequentialRunner", None), (None, None)],
)  # fmt: skip
def test_a_runner_is_known_by_its_name_and_by_its_object(runner: str | None, found: str | None) -> None:
    if found is None:
        refuse_concurrent(runner)
        return
    with pytest.raises(ConfigurationError, match=f"expected the runner SequentialRunner, found {found}: the nodes"):
        refuse_concurrent(runner)
