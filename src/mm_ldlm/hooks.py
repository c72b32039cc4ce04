"""Kedro hooks of a run: check the parameters, lock the data folders, track the run in MLflow, count the seconds."""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from kedro.io import DatasetError

from mm_ldlm.credentials import mask
from mm_ldlm.datasets.locks import FOLDERS, FolderLocks
from mm_ldlm.errors import ConfigurationError, MMLDLMError, TrackingError
from mm_ldlm.pipelines import MAIN

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

    from mm_ldlm.tracking.record import Record

log = logging.getLogger(__name__)

TRACKING = "tracking_reference"
TIMINGS = "timings"
RUNS = "runs"
RUN = "run"
DATASET = "dataset"
TRAINING_SPEC = "training_spec"
METRICS = "metrics"
REPORT = "report"
COMPARISON_PLAN = "comparison_plan"
COMPARISON_RUNS = "comparison_runs"
COMPARISON_REPORT = "comparison_report"
FILES = {REPORT: "report.html", COMPARISON_REPORT: "comparison.html"}
"""Catalog entry → name of its copy in the MLflow run."""
_ALONE = ("sanity", "comparison", "export")
_PIPELINES = {*MAIN, *_ALONE}
_ON_HOSTS = {"embedding", "training"}
"""Pipelines that several hosts run together."""


class ProjectHooks:
    """Hooks of the project. The process has one instance; every `before_pipeline_run` resets it."""

    def __init__(self) -> None:
        self.loading: str | None = None
        """Dataset that is being loaded, for the message of a failed load (`mm_ldlm.cli.unreadable`)."""
        self._project = Path()
        self._context: KedroContext | None = None
        self._catalog: CatalogProtocol | None = None
        self._run: tuple[str, str] | None = None  # tracking URI and run id of the open MLflow run
        self._record: Record | None = None  # of that run
        self._found_finished = False  # the run that this session is to train
        self._seconds: dict[str, float] = {}
        self._counted: set[str] = set()  # pipelines that ran a node in this run
        self._reported: set[str] = set()
        # Node name → when the node started, and the seconds that its pipeline had used before.
        self._started: dict[str, tuple[float, float]] = {}
        self._locks = FolderLocks()
        atexit.register(self._close_killed)

    # -- before ------------------------------------------------------------------------------------

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Store the context: the project's folder, and the loader that loads other environments."""
        self._project, self._context = context.project_path, context

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Check all parameters, lock the folders, then open the MLflow run and save its address to the catalog."""
        from mm_ldlm.distributed.environment import hosts
        from mm_ldlm.distributed.launch import check_number, with_environment
        from mm_ldlm.parameters import check_files, check_machine, check_parameters

        self._locks.release()
        _refuse_concurrent(run_params.get("runner"))
        _refuse_on_other_hosts(pipeline)

        parameters = catalog.load("parameters")
        if "run" in parameters:
            _refuse_beyond_samples(pipeline, catalog)
        typed = check_parameters(parameters)
        if "run" in parameters:
            log.info("run %s: the results are written to %s", parameters["run"], self._outputs(catalog))
        read = {name.removeprefix("params:") for name in pipeline.inputs() if name.startswith("params:")}
        check_files(typed, read=read, runs=self._runs(catalog) if "training" in read else None)
        check_machine(typed, read=read, trains=_trains(pipeline))
        if "training" in typed and any(TRAINING_SPEC in node.inputs for node in pipeline.nodes):
            check_number(with_environment(typed["training"].launch))
        plan = self._plan_comparison(typed["comparison"]) if COMPARISON_PLAN in pipeline.inputs() else None
        self._catalog, self._run, self._started, self._counted = catalog, None, {}, set()
        self._reported, self._record, self._found_finished = set(), None, False
        self.loading = TIMINGS
        self._seconds = dict(catalog.load(TIMINGS)) if catalog.exists(TIMINGS) else {}
        self.loading = None

        if hosts().is_first and (folders := self._folders()) is not None:
            self._locks.take(pipeline, folders)
        try:
            self._begin(typed, parameters, run_params, pipeline, plan)
        except BaseException:
            self._locks.release()
            raise

    def _begin(
        self, typed: dict[str, Any], parameters: dict[str, Any], run_params: dict[str, Any], pipeline: Pipeline,
        plan: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        from mm_ldlm.distributed.environment import hosts

        assert self._catalog is not None
        catalog = self._catalog
        found = hosts()
        if not found.is_first:  # several hosts run this command; the first one tracks the run and writes the outputs
            log.info("host %s of %s: the first host records this run", found.node_rank, found.nodes or "several")
            self._catalog = None
            return
        self._announce(typed, pipeline)
        if typed["tracking"].enabled:
            self._run = self._open_run(typed["tracking"], parameters, run_params, pipeline)
        uri, run_id = self._run or (None, None)
        try:
            catalog.save(TRACKING, {"tracking_uri": uri, "run_id": run_id})
            if plan is not None:
                catalog.save(COMPARISON_PLAN, plan)
        except DatasetError as error:
            raise ConfigurationError(
                f"the data folder cannot be written to ({_first(error)}). Choose another one: `--params data=FOLDER`, "
                "or 'data' in the environment's globals.yml."
            ) from None

    def _announce(self, typed: dict[str, Any], pipeline: Pipeline) -> None:
        """Log what the run will do, where its results will be, and how long the last one took."""
        from mm_ldlm.tracking.description import by_pipeline
        from mm_ldlm.tracking.outlook import outlook

        catalog, made = self._catalog, pipeline.all_outputs()
        assert catalog is not None
        results = {} if RUN not in made else {"checkpoints in": self._runs(catalog)}
        for name, words in ((REPORT, "report"), (COMPARISON_REPORT, "comparison")):
            if name in made and (path := getattr(catalog[name], "_filepath", None)) is not None:
                results[words] = Path(path)
        results = results or {"in": self._outputs(catalog)}
        executed = by_pipeline(pipeline.nodes, (*MAIN, *_ALONE))
        for line in outlook(executed, typed, seconds=self._seconds, results=results, project=self._project):
            log.info(line)

    # -- one run in a folder ---------------------------------------------------------------------------------------

    def _folders(self) -> dict[str, Path] | None:
        """Return the folder of each part; None where there is no catalog with all of them."""
        loader: Any = getattr(self._context, "config_loader", None)
        entries = {} if loader is None else loader["catalog"]
        paths = {part: entries.get(name, {}).get("filepath") for part, name in FOLDERS.items()}
        if not all(paths.values()):
            return None
        return {part: (self._project / path).parents[1] for part, path in paths.items()}

    # -- MLflow and comparison -------------------------------------------------------------------------------------

    def _open_run(
        self, tracking: Any, parameters: dict[str, Any], run_params: dict[str, Any], pipeline: Pipeline
    ) -> tuple[str, str] | None:
        from mm_ldlm.parameters import flatten
        from mm_ldlm.tracking.description import clean, command
        from mm_ldlm.tracking.opening import open_somewhere
        from mm_ldlm.tracking.record import Record
        from mm_ldlm.tracking.source import commit

        names = _executed(pipeline) or ",".join(run_params.get("pipeline_names") or ["all"])
        environment = run_params.get("env") or "local"
        name = tracking.run_name or f"{names}@{environment}"
        line = command(sys.argv, project=self._project)
        opened = open_somewhere(
            tracking.uri,
            root=self._project,
            experiment=tracking.experiment,
            name=name,
            parent=tracking.parent_run,
            parameters=clean(flatten(parameters), project=self._project),
            tags={
                "pipelines": names,
                "command": line,
                "environment": environment,
                "kedro_run": run_params["run_id"],
                **commit(self._project),
            },
        )
        if opened is not None:
            log.info("MLflow run %s in experiment '%s' at %s", opened[1], tracking.experiment, mask(opened[0]))
            chosen = name if tracking.run_name is None else None
            self._record = Record(*opened, project=self._project, name=chosen, pipelines=names, command=line)
        return opened

    def _outputs(self, catalog: CatalogProtocol) -> Path:
        """The folder of samples, metrics and report."""
        described: Any = catalog.get(TIMINGS)
        return Path(described._describe()["filepath"]).parents[1]

    def _runs(self, catalog: CatalogProtocol) -> Path:
        """The folder of the runs."""
        described: Any = catalog.get(RUNS)
        return self._project / described._describe()["filepath"]

    def _plan_comparison(self, comparison: Any) -> dict[str, Any]:
        """The sessions of the pipeline `comparison`, with the parameters of all members resolved and checked."""
        from kedro.framework.project import settings

        from mm_ldlm.comparison.members import sessions_of
        from mm_ldlm.parameters import check_files, check_parameters

        assert self._context is not None
        loader: Any = self._context.config_loader

        def load(environment: str, params: Mapping[str, Any]) -> Any:
            return settings.CONFIG_LOADER_CLASS(
                loader.conf_source, env=environment, runtime_params=dict(params), **settings.CONFIG_LOADER_ARGS
            )

        def check(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
            typed = check_parameters(parameters)
            check_files(typed, read=typed.keys())
            return typed

        sessions = sessions_of(
            comparison,
            current=loader.layers()[1:],
            base=loader.base_env,
            params=loader.runtime_params or {},
            folder=self._project / loader["catalog"][COMPARISON_RUNS]["filepath"],
            project=self._project,
            load=load,
            check=check,
            merge=loader.combine,
        )
        return {
            "project": str(self._project),
            "conf_source": str(loader.conf_source),
            "reports": str((self._project / loader["catalog"][COMPARISON_REPORT]["filepath"]).parent),
            "sessions": [session.to_dict() for session in sessions],
        }

    # -- seconds per pipeline ------------------------------------------------------------------------------------

    @hook_impl
    def before_dataset_loaded(self, dataset_name: str, node: Node) -> None:
        self._count(node)
        self.loading = dataset_name
        if dataset_name == TIMINGS:  # without the pipeline of this node, which is still running
            self._save_timings(without=node.tags)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        self.loading = None
        if dataset_name == TRAINING_SPEC and isinstance(data, dict):
            self._found_finished = self._is_finished(data)
        self._tell(dataset_name, data, trained=False)

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        log.info("%s · %s", "+".join(sorted(node.tags & _PIPELINES)), node.name.rpartition(".")[2])
        self._count(node)

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        self._count(node)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any, node: Node) -> None:
        """Count the seconds of saving; log the headline numbers and the report to MLflow."""
        self._count(node)
        self._locks.saved(dataset_name)
        self._reported |= {dataset_name} & FILES.keys()
        self._tell(dataset_name, data, trained=not self._found_finished)
        if self._run is None or dataset_name not in FILES:
            return
        from mm_ldlm.tracking.mlflow import log_text

        uri, run_id = self._run
        self._send(uri, lambda: log_text(uri, run_id, data, file=FILES[dataset_name]))

    def _tell(self, dataset_name: str, data: Any, *, trained: bool) -> None:
        """Add a dataset, a run or its numbers to the record of the MLflow run."""
        record, catalog = self._record, self._catalog
        if record is None or catalog is None or dataset_name not in (METRICS, DATASET, RUN):
            return
        from mm_ldlm.checkpoints.reference import run_folder
        from mm_ldlm.evaluation.headline import most_important
        from mm_ldlm.tracking.names import MOST_HEADLINES

        def call() -> None:
            if dataset_name == METRICS:
                record.add_metrics(data, first=most_important(data, count=MOST_HEADLINES))
            elif dataset_name == RUN:
                record.add_run(data, run_folder(self._runs(catalog), data), trained=trained)
            elif hasattr(data, "fingerprints") and not record.has_dataset(data.fingerprint):
                # A node saves a mapping of stores instead, and every suite loads the same dataset again.
                place = data.directory.resolve()
                inside = place.is_relative_to(self._project.resolve())
                name = place.relative_to(self._project.resolve()).as_posix() if inside else place.name
                sizes = {split: len(data.rows(split)) for split in ("train", "validation", "test")}
                record.add_dataset(name, data.fingerprint, data.fingerprints, examples=sizes)

        self._send(record.uri, call)

    def _is_finished(self, spec: dict[str, Any]) -> bool:
        """Return whether the run of a spec is finished, so that nothing will be trained."""
        from mm_ldlm.training.status import read_status

        if self._catalog is None:  # another host records this run
            return False
        try:
            return bool(read_status(self._runs(self._catalog) / str(spec["name"]))["status"] == "finished")
        except (KeyError, MMLDLMError):  # the node that trains reports it
            return False

    def _send(self, uri: str, call: Callable[[], None]) -> None:
        """Send something to the tracking store within a bounded time; a run goes on without an answer."""
        from mm_ldlm.tracking.opening import longest, within

        try:
            within(call, seconds=longest(uri))
        except TrackingError as error:
            log.warning("MLflow does not answer (%s); the run goes on, and its files have everything", error)

    def _count(self, node: Node) -> None:
        """Set the seconds of the pipeline: those of its earlier nodes, plus those since this node started to load."""
        now = time.perf_counter()
        for name in node.tags & _PIPELINES:
            if name not in self._counted:  # replace the seconds of an earlier run, do not add to them
                self._counted.add(name)
                self._seconds[name] = 0.0
            started, before = self._started.setdefault(node.name, (now, self._seconds[name]))
            self._seconds[name] = before + now - started

    def _save_timings(self, *, without: Collection[str] = ()) -> None:
        if self._catalog is not None:
            found = {name: round(value, 3) for name, value in self._seconds.items() if name not in without}
            self._catalog.save(TIMINGS, found)

    # -- after ------------------------------------------------------------------------------------

    @hook_impl
    def after_pipeline_run(self) -> None:
        self._save_timings()
        counted = {name: self._seconds[name] for name in (*MAIN, *_ALONE) if name in self._counted}
        log.info(
            "seconds: %s; together %.0f",
            ", ".join(f"{name} {seconds:.1f}" for name, seconds in counted.items()), sum(counted.values()),
        )  # fmt: skip
        if self._catalog is not None:
            for name in sorted(self._reported):
                log.info("report: %s", getattr(self._catalog[name], "_filepath", name))
        self._close("FINISHED")

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        self._close("FAILED", reason=f"{type(error).__name__}: {error}")

    def _close_killed(self) -> None:
        # Ctrl-C and SystemExit do not reach `on_pipeline_error`: Kedro calls it for `Exception` only.
        self._close("KILLED")

    def _close(self, status: str, *, reason: str | None = None) -> None:
        self._locks.release()
        if self._run is None:
            return
        from mm_ldlm.tracking.mlflow import close_run

        (uri, run_id), self._run = self._run, None
        record, self._record = self._record, None
        if record is not None:
            self._send(uri, record.describe)
        self._send(uri, lambda: close_run(uri, run_id, status=status, reason=reason))


def _trains(pipeline: Pipeline) -> bool:
    """Return whether this machine trains, so that it needs the devices and the memory."""
    return any("training_spec" in node.inputs or "sanity" in node.tags for node in pipeline.nodes)


def _refuse_beyond_samples(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Refuse pipelines that would write data, or train a run, although a finished run is chosen by its path; refuse a
    choice in an environment, which the paths of the catalog do not depend on.
    """
    described: Any = catalog.get("run")
    if described._describe()["chosen"] is None:
        raise ConfigurationError(
            "parameter 'run': expected it on the command line (`--params run=PATH`), found it in an environment. "
            "Remove it from the files of parameters."
        )
    uses = {"sampling", "evaluation", "reporting"}
    if others := sorted({name for node in pipeline.nodes for name in node.tags & _PIPELINES} - uses):
        raise ConfigurationError(
            f"parameter 'run': expected only pipelines that use a finished run, found {', '.join(others)}. Add "
            "`--pipelines=sampling,evaluation,reporting`, or leave `run` out."
        )


def _executed(pipeline: Pipeline) -> str:
    """Name the pipelines of the nodes that run; those of which only some nodes run with their nodes."""
    from kedro.framework.project import pipelines

    from mm_ldlm.tracking.description import by_pipeline, name_of

    names = (*MAIN, *_ALONE)
    executed = by_pipeline(pipeline.nodes, names)
    whole = by_pipeline([node for name in executed if name in pipelines for node in pipelines[name].nodes], names)
    return name_of(executed, whole, MAIN)


def _refuse_concurrent(runner: Any) -> None:
    """Refuse the runners that run nodes at the same time (docs/decisions/0125)."""
    if found := [name for name in ("ThreadRunner", "ParallelRunner") if name in str(runner)]:
        raise ConfigurationError(
            f"expected the runner SequentialRunner, found {found[0]}: the nodes use all cores themselves, share one "
            "model, and import libraries when they start. Leave --runner out; training.launch.processes and "
            "embedding.processes set the number of processes."
        )


def _refuse_on_other_hosts(pipeline: Pipeline) -> None:
    """Refuse pipelines that run on one host, where this one is not the first of several (docs/decisions/0167)."""
    from mm_ldlm.distributed.environment import hosts

    found = hosts()
    if found.is_first:
        return
    if others := sorted({name for node in pipeline.nodes for name in node.tags & _PIPELINES} - _ON_HOSTS):
        raise ConfigurationError(
            f"expected only embedding and training on host {found.node_rank} of {found.nodes or 'several'}, found "
            f"{', '.join(others)}. Run the others on one host, before or after: `NNODES=1 kedro run --pipelines=…`; "
            "ingestion also runs on a Ray cluster (docs/ray.md)."
        )


def _first(error: BaseException) -> BaseException:
    """Return the first cause of an error that Kedro wrapped."""
    return _first(error.__cause__) if error.__cause__ else error
