"""Hooks of every run: parse the parameters, check what the run needs, lock the data folders, count the seconds."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl
from kedro.io import MemoryDataset

from mm_ldlm.app.datasets import WorkspaceDataset
from mm_ldlm.app.locks import FOLDERS, FolderLocks
from mm_ldlm.app.parameters import SECTIONS, check_machine, check_parameters
from mm_ldlm.core import ConfigurationError, duration
from mm_ldlm.core.files import refuse_other, remove_temporaries
from mm_ldlm.distributed.environment import hosts
from mm_ldlm.pipelines import PIPELINES, executed_by

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

    from mm_ldlm.app.progress import Follower

log = logging.getLogger(__name__)

TIMINGS = "timings"
"""Catalog entry with the seconds of each pipeline in its last run"""
_ON_HOSTS = {"embedding", "training"}
"""Pipelines that several hosts run together"""
_OF_A_RUN = {"sampling", "evaluation", "reporting"}
"""Pipelines that use a run that is chosen by its path"""


class ProjectHooks:
    """Hooks of the project. The process has one instance; every `before_pipeline_run` resets it."""

    def __init__(self) -> None:
        self.loading: str | None = None
        """Dataset that is being loaded, for the message of a failed load (`mm_ldlm.cli.unreadable`)."""
        self._project = Path()
        self._entries: Mapping[str, Any] = {}
        self._catalog: CatalogProtocol | None = None
        self._locks = FolderLocks()
        self._first = True  # this host writes the outputs and records the run; several may run the same command
        self._follower: Follower | None = None
        self._earlier: dict[str, float] = {}  # seconds of pipelines in earlier runs, and in this one
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last: float | None = None  # time of the last event

    # -- before the first node -----------------------------------------------------------------------------------------

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        self._project = context.project_path

    @hook_impl
    def after_catalog_created(self, catalog: CatalogProtocol, conf_catalog: dict[str, Any]) -> None:
        """Add the parameter `{name}_workspace` of every store, and of the features: its folder, which a node fills; and
        the sections that no file of parameters mentions.
        """
        self._entries = conf_catalog
        for name, entry in conf_catalog.items():
            if str(entry.get("type")).endswith(("StoreDataset", "FeaturesDataset")):
                catalog[f"params:{name}_workspace"] = WorkspaceDataset(filepath=entry["filepath"])
        for name in {f"params:{name}" for name in SECTIONS} - {*catalog.keys()}:
            catalog[name] = {}

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Check and parse all parameters, replace them in the catalog by their types, and lock the folders."""
        self._locks.release()
        self._catalog = catalog
        parameters, executed, found = catalog.load("parameters"), executed_by(pipeline), hosts()
        self._first = found.is_first
        if not self._first and (others := executed.keys() - _ON_HOSTS):
            raise ConfigurationError(  # docs/decisions/0167
                f"expected only embedding and training on host {found.node_rank} of {found.nodes or 'several'}, found "
                f"{', '.join(sorted(others))}. Run the others on one host, before or after: `NNODES=1 kedro run "
                "--pipelines=…`; ingestion also runs on a Ray cluster (docs/ray.md)."
            )
        if "run" in parameters:
            self._refuse_beyond_samples(executed)
            log.info("run %s: the results are written to %s", parameters["run"], self._outputs)
        typed = check_parameters(parameters)
        for name, section in typed.items():
            catalog[f"params:{name}"] = MemoryDataset(section, copy_mode="assign")
        self._check_machine(pipeline, typed)
        self._earlier = catalog.load(TIMINGS) if catalog.exists(TIMINGS) else {}
        self._seconds.clear()
        if self._first:
            folders = {part: Path(self._entries[entry]["filepath"]).parents[1] for part, entry in FOLDERS.items()}
            self._locks.take(pipeline, folders)
            for entry in map(catalog.get, (*pipeline.all_outputs(), TIMINGS)):
                if path := getattr(entry, "_filepath", None) or getattr(entry, "_path", None):  # of a killed run
                    remove_temporaries(path)
                    remove_temporaries(Path(path).parent)
            self._announce(executed)
        self._last = None

    def _check_machine(self, pipeline: Pipeline, typed: Mapping[str, Any]) -> None:
        from mm_ldlm.data.features import from_encoder
        from mm_ldlm.distributed.launch import check_number, with_environment
        from mm_ldlm.training.initial import refuse_missing_origin

        read = {name.removeprefix("params:") for name in pipeline.inputs()}
        launches = any("training_spec" in node.inputs for node in pipeline.nodes)
        embeds = "embedding" in read and from_encoder(objective=typed["objective"], model=typed["model"])
        only_plans = "training_spec" in pipeline.all_outputs() and not launches
        unused = {name for name, used in (("training", not only_plans), ("encoder", embeds)) if not used}
        check_machine(typed, read=read, unused=unused)
        if "training" in read:
            refuse_missing_origin(typed["training"], runs=Path(self._entries["runs"]["filepath"]))
        if launches:
            check_number(with_environment(typed["training"].launch))

    def _refuse_beyond_samples(self, executed: Mapping[str, Any]) -> None:
        """Refuse pipelines that write data or train if a finished run is chosen by its path (`run`).

        A `run` in an environment is refused too, because the paths of the catalog depend on the command line only.
        """
        if self._entries["run"].get("chosen") is None:
            raise ConfigurationError(
                "parameter 'run': expected it on the command line (`--params run=PATH`), found it in an environment. "
                "Remove it from the files of parameters."
            )
        if others := executed.keys() - _OF_A_RUN:
            raise ConfigurationError(
                f"parameter 'run': expected only pipelines that use a finished run, found {', '.join(sorted(others))}. "
                "Add `--pipelines=sampling,evaluation,reporting`, or leave `run` out."
            )

    @property
    def _outputs(self) -> Path:
        """The folder of samples, metrics and report."""
        return Path(self._entries[TIMINGS]["filepath"]).parents[1]

    def _announce(self, executed: Mapping[str, list[str]]) -> None:
        """Log what the run will do, where its results will be and how long its pipelines took before."""
        log.info("this run: %s; %d nodes", " → ".join(executed), sum(map(len, executed.values())))
        log.info("results: %s", self._outputs)
        earlier = sum(self._earlier.get(name, 0.0) for name in executed)
        if earlier:
            log.info("time: the last run here took %s", duration(earlier))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @hook_impl
    def before_dataset_loaded(self, dataset_name: str, node: Node) -> None:
        self.loading = dataset_name
        self._refuse_other(dataset_name)
        self._count(node)
        if dataset_name == TIMINGS:
            self._save_timings(node)

    @hook_impl
    def after_dataset_loaded(self) -> None:
        self.loading = None

    @hook_impl
    def before_node_run(self, node: Node, inputs: dict[str, Any]) -> None:
        """Say which node runs, and show the progress of a training while it does."""
        log.info("%s · %s", "+".join(name for name in PIPELINES if name in node.tags), node.name.rpartition(".")[2])
        if {"training_spec", "runs"} <= inputs.keys():
            from mm_ldlm.app.progress import ProgressSink, follower_of

            self._follower = follower_of(inputs, ProgressSink(inputs["training_spec"]["training"]["max_steps"]))

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        self._count(node)
        self._end_follower()

    def _end_follower(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None

    @hook_impl
    def before_dataset_saved(self, dataset_name: str) -> None:
        self._refuse_other(dataset_name)

    @hook_impl
    def after_dataset_saved(self, node: Node) -> None:
        self._count(node)

    def _refuse_other(self, dataset_name: str) -> None:
        """Refuse a pipe, a device or a folder in the place of a file, which a run would wait for."""
        assert self._catalog is not None
        if (path := getattr(self._catalog.get(dataset_name), "_filepath", None)) is not None:
            refuse_other(Path(str(path)))

    def _count(self, node: Node) -> None:
        """Add the time since the last event to the pipeline of the node."""
        now = time.perf_counter()
        for name in node.tags:
            self._seconds[name] += now - (self._last or now)
        self._last = now

    def _save_timings(self, running: Node | None = None) -> None:
        """Save the seconds of all pipelines but the one of the node that is still running."""
        if self._catalog is not None and self._first:
            found = {**self._earlier, **self._seconds}
            tags = running.tags if running is not None else set()
            self._catalog.save(TIMINGS, {name: round(found[name], 3) for name in found if name not in tags})

    # -- after the last node -------------------------------------------------------------------------------------------

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline) -> None:
        self._save_timings()
        seconds = {name: self._seconds[name] for name in executed_by(pipeline)}
        parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
        log.info("seconds: %s; together %.0f", parts, sum(seconds.values()))
        for name in ("report", "comparison_report"):
            if name in pipeline.all_outputs():
                log.info("report: %s", self._entries[name]["filepath"])
        self._locks.release()

    @hook_impl
    def on_pipeline_error(self) -> None:
        self._end_follower()
        self._locks.release()
