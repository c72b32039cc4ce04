from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kedro.io import DataCatalog, DatasetError, MemoryDataset
from kedro.pipeline import Pipeline, node
from kedro_datasets.json import JSONDataset
from mm_ldlm.app.hooks.tracked import TrackedRun

import mm_ldlm.app.parameters
from mm_ldlm.app.datasets import RunDataset
from mm_ldlm.app.hooks import ProjectHooks, seconds, tracked
from mm_ldlm.app.tracking import mlflow as tracking
from mm_ldlm.app.tracking.config import TrackingConfig
from mm_ldlm.core.errors import ConfigurationError, StoreError, TrackingError

RUN = {"run_id": "2026", "env": "test", "pipeline_names": ["training", "reporting"]}


@pytest.fixture(autouse=True)
def _only_tracking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mm_ldlm.app.parameters, "SECTIONS", {"tracking": "mm_ldlm.app.tracking.config:TrackingConfig"})


def catalog(root: Path, *, enabled: bool) -> DataCatalog:
    section = {"enabled": enabled, "uri": "sqlite:///data/mlflow.db", "experiment": "e"}
    return DataCatalog(
        {
            "parameters": MemoryDataset({"seed": 0, "tracking": section}),
            "tracking_reference": JSONDataset(filepath=str(root / "tracking.json")),
            "timings": JSONDataset(filepath=str(root / "timings.json")),
        }
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs, whose tables take seconds to create."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    tracking.client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(database: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    shutil.copy(database, tmp_path / "data" / "mlflow.db")
    return tmp_path


def context(root: Path) -> Any:
    return SimpleNamespace(project_path=root)


def test_with_tracking_off_the_reference_is_empty(tmp_path: Path) -> None:
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    hooks.after_context_created(context(tmp_path))
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    assert data.load("tracking_reference") == {"tracking_uri": None, "run_id": None}
    hooks.after_pipeline_run()
    assert not (tmp_path / "data").exists()


def test_of_several_hosts_only_the_first_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=True)
    hooks.after_context_created(context(tmp_path))
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    hooks.after_dataset_loaded("training_spec", {"name": "run-1"})
    hooks.after_pipeline_run()
    assert list(tmp_path.glob("*")) == []


def test_a_parameter_without_effect_in_this_run_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    readers = {"validation": Pipeline([node(lambda value: value, "params:normaliser", "fitted")])}
    monkeypatch.setattr("mm_ldlm.app.hooks.project.pipelines", readers)
    for given in ({"normaliser": {"kind": "standard"}}, {"tracking": {"enabled": False}}, None):
        caplog.clear()
        hooks = ProjectHooks()
        hooks.after_context_created(context(tmp_path))
        run = RUN | {"runtime_params": given}
        hooks.before_pipeline_run(run_params=run, pipeline=Pipeline([]), catalog=catalog(tmp_path, enabled=False))
        hooks.after_pipeline_run()
        warned = [record.message for record in caplog.records if "no effect" in record.message]
        assert len(warned) == ("normaliser" in (given or {}))


def test_a_run_is_announced_before_its_first_node_on_the_first_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    data = catalog(tmp_path / "data" / "08_reporting", enabled=False)
    data["report"] = JSONDataset(filepath=str(tmp_path / "data" / "08_reporting" / "report.html"))
    data.save("timings", {"training": 61.0, "embedding": 7.0})
    pipeline = Pipeline([node(lambda: 1, None, "report", name="write", tags="training")])
    for host in ("0", "1"):
        monkeypatch.setenv("NNODES", "2")
        monkeypatch.setenv("NODE_RANK", host)
        caplog.clear()
        hooks = ProjectHooks()
        hooks.after_context_created(context(tmp_path))
        hooks.before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=data)
        lines = [record.getMessage() for record in caplog.records]
        if host == "1":
            assert lines == ["host 1 of 2: the first host records this run"]
            continue
        assert lines == [
            "this run: training; 1 node", "results: report data/08_reporting/report.html",
            "time: the last run here took 61 s",
        ]  # fmt: skip


@pytest.mark.parametrize("name", ["ingestion", "validation", "sampling"])
def test_other_hosts_refuse_what_runs_on_one_host(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
        hooks.after_context_created(context(tmp_path))
        nodes = [node(lambda: 1, None, tag, name=tag, tags=[tag]) for tag in (name, "embedding", "training")]
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline(nodes), catalog=data)

    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(ConfigurationError, match=rf"only embedding and training on host 1 of 2, found {name}\. Run"):
        start()
    monkeypatch.setenv("NODE_RANK", "0")
    start()
    monkeypatch.setenv("NNODES", "1")
    monkeypatch.setenv("NODE_RANK", "1")  # left over from another job
    start()


def training_parameters(monkeypatch: pytest.MonkeyPatch, data: DataCatalog, **launch: Any) -> None:
    """Let the parameters have the section `training`, with these settings of its launch."""
    monkeypatch.setitem(mm_ldlm.app.parameters.SECTIONS, "training", "mm_ldlm.training.config:TrainingConfig")
    training = {"batch": {"examples": 8}, "max_steps": 4, "optimizer": {"warmup_steps": 0}, "launch": launch}
    data["parameters"] = MemoryDataset({**data.load("parameters"), "training": training})


def start_training(root: Path, data: DataCatalog, *, node_name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Begin a run of one node of training; return whether it locked the results."""
    inputs = {"plan_training": "params:training", "run_training": "training_spec"}[node_name]
    pipeline = Pipeline([node(lambda x: x, inputs, "out", name=node_name, tags="training")])
    hooks = ProjectHooks()
    hooks.after_context_created(context(root))
    monkeypatch.setattr(ProjectHooks, "_folders", lambda self: {"results": root / "data"})
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: root / "runs")
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_files", lambda typed, **how: None)
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_machine", lambda typed, **how: None)
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    hooks.before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=data)
    held = bool(hooks._locks._held)
    hooks.after_pipeline_run()
    return held


def test_a_training_on_several_hosts_without_their_numbers_is_refused_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = catalog(tmp_path, enabled=False)
    training_parameters(monkeypatch, data, nodes=2, rendezvous="head:29400")
    with pytest.raises(
        ConfigurationError, match=r"number of this host among 2 in NODE_RANK .*, found none\. Set it on"
    ):
        start_training(tmp_path, data, node_name="run_training", monkeypatch=monkeypatch)
    assert list(tmp_path.glob("*")) == []
    # The plan is made on one host, which starts no ranks.
    assert start_training(tmp_path, data, node_name="plan_training", monkeypatch=monkeypatch)
    monkeypatch.setenv("NODE_RANK", "0")
    assert start_training(tmp_path, data, node_name="run_training", monkeypatch=monkeypatch)
    monkeypatch.setenv("NODE_RANK", "1")
    assert not start_training(tmp_path, data, node_name="run_training", monkeypatch=monkeypatch)


def test_the_only_host_records_and_locks_whatever_number_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = catalog(tmp_path, enabled=False)
    training_parameters(monkeypatch, data, nodes=1)
    monkeypatch.setenv("NODE_RANK", "1")  # left over from another job
    with pytest.raises(ConfigurationError, match=r"found number 1 \(NODE_RANK\) of one host\. Set NNODES"):
        start_training(tmp_path, data, node_name="run_training", monkeypatch=monkeypatch)
    monkeypatch.setenv("NNODES", "1")
    assert start_training(tmp_path, data, node_name="run_training", monkeypatch=monkeypatch)
    assert data.load("tracking_reference") == {"tracking_uri": None, "run_id": None}


def test_a_run_that_cannot_begin_gives_its_locks_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook lives on; other runs on the data would be refused until it ends."""
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    hooks.after_context_created(context(tmp_path))
    monkeypatch.setattr(ProjectHooks, "_folders", lambda self: {"results": tmp_path / "data"})
    held = []

    def fail(self: ProjectHooks, *_: Any) -> None:
        held.append(bool(self._locks._held))
        raise KeyboardInterrupt

    monkeypatch.setattr(ProjectHooks, "_begin", fail)
    pipeline = Pipeline([node(lambda: 1, None, "out", name="a", tags="training")])
    with pytest.raises(KeyboardInterrupt):
        hooks.before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=data)
    assert held == [True]
    assert not hooks._locks._held


def test_the_seconds_of_a_pipeline_are_those_of_all_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(seconds.time, "perf_counter", lambda: now)
    counted = seconds.PipelineSeconds({"training": 50.0, "ingestion": 7.0})
    for name, lasts in (("a", 3.0), ("b", 4.0)):
        each = node(lambda: 1, None, name, name=name, tags="training")
        counted.count(each)  # as it loads
        now += lasts
        counted.count(each)  # as it has saved
        now += 10.0  # of other pipelines
    assert counted.finished() == {"training": 7.0, "ingestion": 7.0}
    assert counted.of_this_run() == {"training": 7.0}


def test_every_hook_works_on_the_other_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no record of the run, whose catalog entries they also load and save."""
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NODE_RANK", "1")
    each = node(lambda x: x, "dataset", "run", name="run_training", tags="training", namespace="training")
    for end in (
        ProjectHooks.after_pipeline_run,
        lambda hooks: hooks.on_pipeline_error(error=ConfigurationError("why")),
    ):
        hooks, data = ProjectHooks(), catalog(tmp_path, enabled=True)
        hooks.after_context_created(context(tmp_path))
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([each]), catalog=data)
        for name, value in (("timings", {}), ("training_spec", {"name": "run-1"}), ("dataset", {}), ("run", {})):
            hooks.before_dataset_loaded(name, each)
            hooks.after_dataset_loaded(name, value)
        hooks.before_node_run(each)
        hooks.after_node_run(each)
        for name in ("run", "metrics", "report", "dataset"):
            hooks.after_dataset_saved(name, {"name": "run-1"}, each)
        end(hooks)
        hooks._close_killed()
    assert list(tmp_path.glob("*")) == []


def test_one_mlflow_run_for_one_kedro_run_with_its_true_end(project: Path) -> None:
    wrapped = DatasetError("tokens: Failed while loading data")
    wrapped.__cause__ = ConfigurationError("why")
    ends = {
        "FINISHED": lambda hooks: hooks.after_pipeline_run(),
        "FAILED": lambda hooks: hooks.on_pipeline_error(error=wrapped),
        "KILLED": lambda hooks: hooks._close_killed(),  # what the interpreter calls on its way out
    }
    for status, end in ends.items():
        hooks, data = ProjectHooks(), catalog(project, enabled=True)
        hooks.after_context_created(context(project))
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
        reference = data.load("tracking_reference")
        client = tracking.client(reference["tracking_uri"])
        assert client.get_run(reference["run_id"]).info.status == "RUNNING"
        hooks.after_dataset_saved("metrics", {"l2t.bleu": 0.25}, node(lambda: 1, None, "metrics", name="m"))
        end(hooks)
        hooks._close_killed()  # on the way out again: must not change what is written
        run = client.get_run(reference["run_id"])
        assert run.info.status == status
        assert run.data.metrics == {"1_headline/l2t.bleu": 0.25}
        assert run.data.params["tracking.experiment"] == "e"
        assert run.data.tags["environment"] == "test"
        assert run.data.tags.get("reason") == ("ConfigurationError: why" if status == "FAILED" else None)
    assert run.info.run_name == "training,reporting@test"


def test_nothing_is_recorded_when_parameters_are_refused(tmp_path: Path) -> None:
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=True)
    hooks.after_context_created(context(tmp_path))
    data["parameters"] = MemoryDataset({"seed": 0, "tracking": {"enabeld": True}})
    with pytest.raises(ConfigurationError, match=r"'tracking\.enabeld' is not known\. Did you mean 'enabled'"):
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    assert not (tmp_path / "data").exists()
    assert not data.exists("tracking_reference")


@pytest.mark.parametrize(("section", "runs"), [("training", "runs"), ("sampling", None)])
def test_a_run_that_trains_looks_for_its_checkpoints_before_the_first_node(
    section: str, runs: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_files", lambda typed, **how: seen.update(how))
    monkeypatch.setattr(mm_ldlm.app.parameters, "check_machine", lambda typed, **how: None)
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: tmp_path / "runs")
    pipeline = Pipeline([node(lambda x: x, f"params:{section}", "out", name="n")])
    data = catalog(tmp_path, enabled=False)
    ProjectHooks().before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=data)
    assert seen == {"read": {section}, "runs": None if runs is None else tmp_path / runs}


def test_seconds_are_counted_per_pipeline_and_stand_when_a_node_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(0, 1000, 10))
    monkeypatch.setattr("mm_ldlm.app.hooks.seconds.time.perf_counter", lambda: float(next(seconds)))
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    data.save("timings", {"training": 5.0, "embedding": 7.0})  # of an earlier run
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    plan, train = (
        node(lambda: 1, None, name, name=name, tags="training", namespace="training") for name in ("plan", "train")
    )
    assert plan.name == "training.plan"
    report = node(lambda x: x, "timings", "report", name="report", tags={"reporting", "other"}, namespace="reporting")
    for each in (plan, train):
        hooks.before_node_run(each)
        hooks.after_node_run(each)
        hooks.after_dataset_saved("something", None, each)
    hooks.before_dataset_loaded("timings", report)
    assert data.load("timings") == {"training": 40.0, "embedding": 7.0}  # reporting is still running
    hooks.after_pipeline_run()
    assert data.load("timings") == {"training": 40.0, "embedding": 7.0, "reporting": 0.0}


def test_the_dataset_that_is_being_loaded_is_known_while_it_loads_and_after_a_failure(tmp_path: Path) -> None:
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    assert hooks.loading is None
    reader = node(lambda x: x, "a", "b", name="reader", tags="training")
    hooks.before_dataset_loaded("a", reader)
    assert hooks.loading == "a"
    hooks.after_dataset_loaded("a", None)
    assert hooks.loading is None
    (tmp_path / "timings.json").write_text("[")
    with pytest.raises(DatasetError):
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    assert hooks.loading == "timings"


@pytest.mark.parametrize("content", ["[1]", '{"training": "long"}', '{"training": null}', '{"training": true}', "3"])
def test_seconds_that_are_none_are_refused_before_the_first_node(content: str, tmp_path: Path) -> None:
    (tmp_path / "timings.json").write_text(content)
    data = catalog(tmp_path, enabled=False)
    with pytest.raises(StoreError, match=r"^'timings' \(.*timings\.json\): expected .*, found .*\. Remove the file"):
        ProjectHooks().before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("metrics_sts", [1], "a mapping"),
        ("metrics_sts", "x", "a mapping"),
        ("metrics_sts", {}, None),
        ("sanity_report", {}, "a list"),
        ("sanity_report", [], None),
        ("comparison_outcomes", [], None),
    ],
)
def test_an_artifact_in_json_has_the_form_that_the_project_writes(
    name: str, value: Any, expected: str | None, tmp_path: Path
) -> None:
    data = catalog(tmp_path, enabled=False)
    data[name] = JSONDataset(filepath=str(tmp_path / "x.json"))
    data["memory"] = MemoryDataset(value)
    hooks = ProjectHooks()
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([]), catalog=data)
    hooks.after_dataset_loaded("memory", value)
    if expected is None:
        hooks.after_dataset_loaded(name, value)
        return
    with pytest.raises(StoreError, match=rf"^'{name}' \(.*x\.json\): expected {expected}, found .*run the pipeline"):
        hooks.after_dataset_loaded(name, value)


@pytest.mark.parametrize("runner", ["ThreadRunner", "<kedro.runner.parallel_runner.ParallelRunner object at 0x7f>"])
def test_runners_that_run_nodes_at_the_same_time_are_refused(runner: str, tmp_path: Path) -> None:
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    with pytest.raises(ConfigurationError, match=r"runner SequentialRunner, found (Thread|Parallel)Runner"):
        hooks.before_pipeline_run(run_params={**RUN, "runner": runner}, pipeline=Pipeline([]), catalog=data)
    hooks.before_pipeline_run(run_params={**RUN, "runner": "SequentialRunner"}, pipeline=Pipeline([]), catalog=data)


@pytest.mark.parametrize(
    ("tags", "chosen", "message"),
    [
        ({"training"}, "somewhere", r"expected only pipelines that use a finished run, found training\. Add `--pipe"),
        ({"sampling"}, None, r"'run': expected it on the command line .*, found it in an environment"),
    ],
)
def test_a_run_by_its_path_is_refused_where_it_would_be_ignored(
    tags: set[str], chosen: str | None, message: str, tmp_path: Path
) -> None:
    data = catalog(tmp_path, enabled=False)
    data["parameters"] = MemoryDataset({"seed": 0, "tracking": {"enabled": False}, "run": "somewhere"})
    data["run"] = RunDataset(filepath=str(tmp_path / "run.json"), chosen=chosen)
    pipeline = Pipeline([node(lambda: 1, None, "out", name="n", tags=tags)])
    with pytest.raises(ConfigurationError, match=message):
        ProjectHooks().before_pipeline_run(run_params=RUN, pipeline=pipeline, catalog=data)


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_finished_run_that_goes_back_is_trained_here(
    goes_back: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the run shows it, because a finished run that goes back to a checkpoint is trained again."""
    folder = project / "runs" / "big"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "status.json").write_text('{"status": "finished", "step": 9}')
    (folder / "training_log.jsonl").write_text("{}\n")
    os.utime(folder / "training_log.jsonl", (1, 1))
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: project / "runs")
    monkeypatch.setattr("kedro.framework.project.pipelines", {})
    hooks, data = ProjectHooks(), catalog(project, enabled=True)
    hooks.after_context_created(context(project))
    train = node(lambda x: x, "training_spec", "run", name="run_training", tags="training", namespace="training")
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([train]), catalog=data)
    place = data.load("tracking_reference")
    tags = lambda: tracking.client(place["tracking_uri"]).get_run(place["run_id"]).data.tags  # noqa: E731
    hooks.after_dataset_loaded("training_spec", {"name": "big"})
    assert tags()["run_folder"] == "big", "a training that fails leads to its folder too"
    if goes_back:
        (folder / "training_log.jsonl").write_text("{}\n{}\n")
    hooks.after_dataset_saved("run", {"name": "big", "step": 9, "checkpoint": "step-00000009"}, train)
    assert tags()["trained_here"] == str(goes_back).lower()
    hooks.after_pipeline_run()


def test_the_mlflow_run_leads_back_to_run_folder_data_and_command(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of some nodes, whose training was finished before, with numbers and a description."""
    folder = project / "runs" / "run-0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model": {"kind": "dit"}, "objective": {"kind": "text_diffusion"}}')
    (folder / "status.json").write_text('{"status": "finished", "step": 9}')
    monkeypatch.setattr(ProjectHooks, "_runs", lambda self, catalog: project / "runs")
    monkeypatch.setattr("kedro.framework.project.pipelines", {})  # other tests may have configured the project's
    monkeypatch.setattr("sys.argv", ["/opt/venv/bin/kedro", "run", "--from-nodes=run_training", "--params=a=/x/y/z"])
    hooks, data = ProjectHooks(), catalog(project, enabled=True)
    hooks.after_context_created(context(project))
    train = node(lambda x: x, "training_spec", "run", name="run_training", tags="training", namespace="training")
    evaluate = node(lambda x: x, "run", "metrics", name="evaluate", tags="evaluation", namespace="evaluation")
    hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([train, evaluate]), catalog=data)
    hooks.after_dataset_loaded("training_spec", {"name": "run-0123"})
    reference = {"name": "run-0123", "fingerprint": "f", "step": 9, "checkpoint": "step-00000009"}
    hooks.after_dataset_saved("run", reference, train)
    rows = {"train": range(7), "validation": range(2), "test": range(1)}
    stores = SimpleNamespace(
        directory=project / "data/05", fingerprint="d", fingerprints={"tokens": "t"}, rows=rows.__getitem__
    )
    hooks.after_dataset_loaded("dataset", stores)
    hooks.after_dataset_saved("dataset", {"tokens": None}, train)  # as the node of validation saves it
    hooks.after_dataset_saved("metrics", {"perplexity": 2.5, "made_by": {"run": "r"}}, evaluate)
    hooks.after_pipeline_run()

    reference = data.load("tracking_reference")
    run = tracking.client(reference["tracking_uri"]).get_run(reference["run_id"])
    assert run.info.run_name == "training,evaluation@test run-0123"
    tags = run.data.tags
    assert tags["command"] == "kedro run --from-nodes=run_training --params=a=…/z"
    assert (tags["run_folder"], tags["trained_here"], tags["fingerprint.tokens"]) == ("run-0123", "false", "t")
    for words in ("Used `dit`", "| perplexity | 2.5 |", "data/05, fingerprint d, examples: 7 train", tags["command"]):
        assert words in tags["mlflow.note.content"]
    assert [item.dataset.digest for item in run.inputs.dataset_inputs] == ["d", "t"]
    assert run.data.metrics == {"1_headline/perplexity": 2.5}


@pytest.mark.parametrize("chosen", [None, "mine"])
def test_the_section_of_tracking_and_the_command_decide_the_mlflow_run(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def open_somewhere(uri: str, **run: Any) -> tuple[str, str]:
        seen.update(uri=uri, **run)
        return "sqlite:///opened.db", "an id"

    monkeypatch.setattr("mm_ldlm.app.tracking.opening.open_somewhere", open_somewhere)
    monkeypatch.setattr(
        "mm_ldlm.app.tracking.record.Record", lambda *place, **given: seen.update(record=(place, given))
    )
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._executed", lambda pipeline: "training,sampling")
    monkeypatch.setattr("sys.argv", ["kedro", "run", "--env=e5+mdlm"])
    section = TrackingConfig(enabled=True, uri="http://h:1", experiment="x", run_name=chosen, parent_run="above")
    run = TrackedRun(project=tmp_path, runs=lambda: tmp_path / "runs")
    run.open(section, {"model": {"dim": 3}, "seed": 4}, {"run_id": "2026", "env": "e5+mdlm"}, Pipeline([]))
    assert run.address == ("sqlite:///opened.db", "an id")
    name = chosen or "training,sampling@e5+mdlm"
    assert seen == {
        "uri": "http://h:1", "root": tmp_path, "experiment": "x", "name": name, "parent": "above",
        "parameters": {"model.dim": 3, "seed": 4},
        "tags": {"pipelines": "training,sampling", "command": "kedro run --env=e5+mdlm", "environment": "e5+mdlm",
                 "kedro_run": "2026"},
        "record": (("sqlite:///opened.db", "an id"), {
            "project": tmp_path, "name": None if chosen else name, "pipelines": "training,sampling",
            "command": "kedro run --env=e5+mdlm",
        }),
    }  # fmt: skip
    monkeypatch.setattr("mm_ldlm.app.hooks.tracked._executed", lambda pipeline: "")
    run.open(section, {}, {"run_id": "2026", "env": None, "pipeline_names": None}, Pipeline([]))
    assert (seen["name"], seen["tags"]["environment"]) == (chosen or "all@local", "local")


def test_a_second_run_of_the_process_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in a notebook: the report and the seconds of the first run are not those of the second."""
    caplog.set_level("INFO", logger="mm_ldlm.app.hooks")
    hooks, data = ProjectHooks(), catalog(tmp_path, enabled=False)
    data["report"] = JSONDataset(filepath=str(tmp_path / "report.html"))
    hooks.after_context_created(context(tmp_path))
    for tag in ("reporting", "training"):
        caplog.clear()
        each = node(lambda: 1, None, "out", name=tag, tags=tag, namespace=tag)
        hooks.before_pipeline_run(run_params=RUN, pipeline=Pipeline([each]), catalog=data)
        hooks.before_node_run(each)
        if tag == "reporting":
            hooks.after_dataset_saved("report", "<html>", each)
        hooks.after_pipeline_run()
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if line.startswith("seconds")] == [f"seconds: {tag} 0.0; together 0"]
        assert [line for line in lines if line.startswith("report: ")] == (
            [f"report: {tmp_path / 'report.html'}"] if tag == "reporting" else []
        )


def test_a_tracking_store_that_does_not_answer_is_a_warning_and_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds: list[float] = []

    def within(call: Any, *, seconds_: list[float] = seconds, **given: float) -> None:
        seconds_.append(given["seconds"])
        raise TrackingError("no answer within 12 s")

    monkeypatch.setattr("mm_ldlm.app.tracking.opening.within", within)
    for uri in ("http://h:1", "sqlite:///x.db"):
        tracked._send(uri, lambda: None)
    assert seconds == [12.0, 120.0]
    assert caplog.text.count("MLflow does not answer (no answer within 12 s); the run goes on") == 2
