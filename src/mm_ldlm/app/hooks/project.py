"""The hooks of the project, in the order in which Kedro calls them."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines
from kedro.io import DatasetError, MemoryDataset

from mm_ldlm.app.datasets import WorkspaceDataset
from mm_ldlm.app.datasets.locks import FOLDERS, FolderLocks
from mm_ldlm.app.hooks.names import (
    COMPARISON_PLAN,
    COMPARISON_REPORT,
    COMPARISON_RUNS,
    FILES,
    ORDER,
    PIPELINES,
    REPORT,
    RUN,
    RUNS,
    TIMINGS,
    TRACKING,
    TRAINING_SPEC,
)
from mm_ldlm.app.hooks.refusals import (
    later_than_test,
    launches,
    refuse_beyond_samples,
    refuse_concurrent,
    refuse_on_other_hosts,
    refuse_other_json,
    trains,
)
from mm_ldlm.app.hooks.seconds import PipelineSeconds
from mm_ldlm.app.hooks.tracked import TrackedRun
from mm_ldlm.app.hooks.unread import unread
from mm_ldlm.core.errors import ConfigurationError, purposeful

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

    from mm_ldlm.app.tracking.follower import Follower, Sink

log = logging.getLogger(__name__)


class ProjectHooks:
    """Hooks of the project. The process has one instance; every `before_pipeline_run` resets it."""

    def __init__(self) -> None:
        self.loading: str | None = None
        """Dataset that is being loaded, for the message of a failed load (`mm_ldlm.cli.unreadable`)."""
        self._project = Path()
        self._context: KedroContext | None = None
        self._catalog: CatalogProtocol | None = None  # None on a host that does not record the run
        self._tracked: TrackedRun | None = None
        self._seconds = PipelineSeconds()
        self._reported: set[str] = set()
        self._follower: Follower | None = None  # passes on the log of a training while it is written
        self._locks = FolderLocks()
        atexit.register(self._close_killed)

    # -- before ------------------------------------------------------------------------------------

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Store the context: the project's folder, and the loader that loads other environments."""
        self._project, self._context = context.project_path, context

    @hook_impl
    def after_catalog_created(self, catalog: CatalogProtocol, conf_catalog: Mapping[str, Any]) -> None:
        """Add the parameter `{name}_workspace` of every store, and of the features: its folder, which a node fills."""
        for name, entry in conf_catalog.items():
            if str(entry.get("type")).endswith(("StoreDataset", "FeaturesDataset")):
                catalog[f"params:{name}_workspace"] = WorkspaceDataset(filepath=entry["filepath"])

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Check all parameters, lock the folders, then open the MLflow run and save its address to the catalog."""
        from mm_ldlm.app.parameters import check_files, check_machine, check_parameters
        from mm_ldlm.distributed.environment import hosts
        from mm_ldlm.distributed.launch import check_number, with_environment

        self._locks.release()
        refuse_concurrent(run_params.get("runner"))
        refuse_on_other_hosts(pipeline)

        parameters = catalog.load("parameters")
        if "run" in parameters:
            refuse_beyond_samples(pipeline, catalog)
        try:
            typed = check_parameters(parameters)
        except ConfigurationError as error:
            loader: Any = getattr(self._context, "config_loader", None)
            if loader is None or not (hint := later_than_test(loader.layers()[1:])):
                raise
            raise ConfigurationError(f"{error}{hint}") from None
        if "run" in parameters:
            log.info("run %s: the results are written to %s", parameters["run"], self._outputs(catalog))
        read = {name.removeprefix("params:") for name in pipeline.inputs() if name.startswith("params:")}
        check_files(typed, read=read, runs=self._runs(catalog) if "training" in read else None)
        check_machine(typed, read=read, trains=trains(pipeline))
        for name, section in typed.items():
            catalog[f"params:{name}"] = MemoryDataset(section, copy_mode="assign")
        if "training" in typed and launches(pipeline):
            check_number(with_environment(typed["training"].launch))
        plan = self._plan_comparison(typed["comparison"]) if COMPARISON_PLAN in pipeline.inputs() else None
        self._catalog, self._tracked, self._reported = catalog, None, set()
        self.loading = TIMINGS
        earlier = catalog.load(TIMINGS) if catalog.exists(TIMINGS) else None
        self.loading = None
        if earlier is not None:
            refuse_other_json(TIMINGS, earlier, catalog.get(TIMINGS))
        self._seconds = PipelineSeconds(earlier)

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
        self._announce(typed, pipeline, catalog)
        if warning := unread(run_params.get("runtime_params") or {}, pipeline, pipelines):
            log.warning(warning)
        self._tracked = TrackedRun(project=self._project, runs=lambda: self._runs(catalog))
        if typed["tracking"].enabled:
            self._tracked.open(typed["tracking"], parameters, run_params, pipeline)
        uri, run_id = self._tracked.address or (None, None)
        try:
            catalog.save(TRACKING, {"tracking_uri": uri, "run_id": run_id})
            if plan is not None:
                catalog.save(COMPARISON_PLAN, plan)
        except DatasetError as error:
            raise ConfigurationError(
                f"the data folder cannot be written to ({_first(error)}). Choose another one: `--params data=FOLDER`, "
                "or 'data' in the environment's globals.yml."
            ) from None

    def _announce(self, typed: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Log what the run will do, where its results will be and how long the last one took."""
        from mm_ldlm.app.tracking.description import by_pipeline
        from mm_ldlm.app.tracking.outlook import outlook

        made = pipeline.all_outputs()
        results = {} if RUN not in made else {"checkpoints in": self._runs(catalog)}
        for name, words in ((REPORT, "report"), (COMPARISON_REPORT, "comparison")):
            if name in made and (path := getattr(catalog[name], "_filepath", None)) is not None:
                results[words] = Path(path)
        results = results or {"in": self._outputs(catalog)}
        executed = by_pipeline(pipeline.nodes, ORDER)
        for line in outlook(executed, typed, seconds=self._seconds.all, results=results, project=self._project):
            log.info(line)

    # -- folders and comparison ------------------------------------------------------------------------------------

    def _folders(self) -> dict[str, Path] | None:
        """Return the folder of each part; None where there is no catalog with all of them."""
        loader: Any = getattr(self._context, "config_loader", None)
        entries = {} if loader is None else loader["catalog"]
        paths = {part: entries.get(name, {}).get("filepath") for part, name in FOLDERS.items()}
        if not all(paths.values()):
            return None
        return {part: (self._project / path).parents[1] for part, path in paths.items()}

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

        from mm_ldlm.app.parameters import check_files, check_parameters
        from mm_ldlm.extras.comparison.members import sessions_of

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

    # -- nodes -----------------------------------------------------------------------------------------------------

    @hook_impl
    def before_dataset_loaded(self, dataset_name: str, node: Node) -> None:
        self.loading = dataset_name
        self._seconds.count(node)
        if dataset_name == TIMINGS:  # without the pipeline of this node, which is still running
            self._save_timings(without=node.tags)

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        self.loading = None
        if self._catalog is not None:
            refuse_other_json(dataset_name, data, self._catalog.get(dataset_name))
        if self._tracked is not None:
            self._tracked.loaded(dataset_name, data)

    @hook_impl
    def before_node_run(self, node: Node, inputs: dict[str, Any]) -> None:
        log.info("%s · %s", "+".join(sorted(node.tags & PIPELINES)), node.name.rpartition(".")[2])
        self._seconds.count(node)
        if {TRAINING_SPEC, RUNS} <= inputs.keys():
            self._follow(inputs[TRAINING_SPEC], inputs[RUNS])

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        self._unfollow()
        self._seconds.count(node)

    def _follow(self, spec: Mapping[str, Any], runs: Path) -> None:
        """Show the progress of a training, and send its metrics to MLflow, while it runs."""
        from mm_ldlm.app.tracking.follower import Follower
        from mm_ldlm.app.tracking.mlflow import MlflowSink
        from mm_ldlm.app.tracking.progress import ProgressSink
        from mm_ldlm.training.status import LOG

        sinks: list[Sink] = [ProgressSink(spec["training"]["max_steps"])]
        if self._tracked is not None and self._tracked.address is not None:
            sinks.append(MlflowSink(*self._tracked.address))
        self._follower = Follower(runs / spec["name"] / LOG, sinks)
        self._follower.start()

    def _unfollow(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any, node: Node) -> None:
        """Count the seconds of saving; log the headline numbers and the report to MLflow."""
        self._seconds.count(node)
        self._locks.saved(dataset_name)
        self._reported |= {dataset_name} & FILES.keys()
        if self._tracked is not None:
            self._tracked.saved(dataset_name, data)

    def _save_timings(self, *, without: Collection[str] = ()) -> None:
        if self._catalog is not None:
            self._catalog.save(TIMINGS, self._seconds.finished(without=without))

    # -- after ------------------------------------------------------------------------------------

    @hook_impl
    def after_pipeline_run(self) -> None:
        self._save_timings()
        counted = self._seconds.of_this_run()
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
        known = purposeful(error) or error  # without Kedro's words around it
        self._close("FAILED", reason=f"{type(known).__name__}: {known}")

    def _close_killed(self) -> None:
        # Ctrl-C and SystemExit do not reach `on_pipeline_error`: Kedro calls it for `Exception` only.
        self._close("KILLED")

    def _close(self, status: str, *, reason: str | None = None) -> None:
        self._unfollow()
        self._locks.release()
        if self._tracked is not None:
            self._tracked.close(status, reason=reason)


def _first(error: BaseException) -> BaseException:
    """Return the first cause of an error that Kedro wrapped."""
    return _first(error.__cause__) if error.__cause__ else error
