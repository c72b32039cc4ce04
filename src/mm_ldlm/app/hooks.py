"""Hooks of every run: parse the parameters, check what the run needs, lock the data folders, count the seconds."""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol, MemoryDataset
from kedro.pipeline import Node, Pipeline

from mm_ldlm.app.catalog import WorkspaceDataset
from mm_ldlm.app.locks import FOLDERS, lock_folders
from mm_ldlm.app.parameters import SECTIONS, check_machine, check_parameters
from mm_ldlm.core import ConfigurationError, StoreError
from mm_ldlm.core.files import remove_temporaries
from mm_ldlm.data.features import from_encoder, planned
from mm_ldlm.distributed.environment import given, hosts
from mm_ldlm.distributed.launch import check_number, with_environment
from mm_ldlm.pipelines import MAIN, PIPELINES, executed_by, partly
from mm_ldlm.training.config import refuse_empty_splits, splits_read

log = logging.getLogger(__name__)

TIMINGS = "timings"
"""Catalog entry with the seconds of each pipeline in its last run"""
_ON_HOSTS = {"embedding", "training"}
"""Pipelines that several hosts run together"""
_OF_A_RUN = {"sampling", "evaluation", "reporting", "sts"}
"""Pipelines that use a run that is chosen by its path"""
_OLDER = {
    "LEARNING_RATE": "training.optimizer.lr", "WARMUP_STEPS": "training.optimizer.warmup_steps",
    "BATCH_SIZE": "training.batch.examples", "MAX_STEPS": "training.max_steps", "NUM_EPOCHS": "training.epochs",
    "LOSS_TYPE": "objective.mode", "RUN_NAME": "training.run_name", "NUM_SAMPLES": "sampling.l2t.samples",
}  # fmt: skip
"""Environment variables of older scripts, and the parameters that have their place"""


class ProjectHooks:
    """Hooks of the project. The process has one instance; every `before_pipeline_run` resets it."""

    def __init__(self) -> None:
        self.loading: str | None = None
        """Dataset that is being loaded, for the message of a failed load (`mm_ldlm.cli.unreadable`)."""
        self._entries: Mapping[str, Any] = {}
        self._catalog: Any = None
        self._locks = ExitStack()
        self._executed: dict[str, list[str]] = {}
        self._splits: dict[str, str] = {}  # parameter of a pipeline of this run → the split that it reads
        self._earlier: dict[str, float] = {}  # seconds of pipelines in earlier runs, and in this one
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last: float | None = None  # time of the last event

    # -- before the first node -----------------------------------------------------------------------------------------

    @hook_impl
    def after_catalog_created(self, catalog: CatalogProtocol, conf_catalog: dict[str, Any]) -> None:
        """Add the parameter `{name}_workspace` of every store and workspace: its folder, which a node fills; and the
        sections that no file of parameters mentions.
        """
        self._entries = conf_catalog
        for name, entry in conf_catalog.items():
            if str(entry.get("type")).endswith(("StoreDataset", "WorkspaceDataset")):
                catalog[f"params:{name}_workspace"] = WorkspaceDataset(filepath=entry["filepath"])
        for name in {f"params:{name}" for name in SECTIONS} - {*catalog.keys()}:
            catalog[name] = {}

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Check and parse all parameters, replace them in the catalog by their types, and lock the folders."""
        if parallel := [name for name in ("ParallelRunner", "ThreadRunner") if name in str(run_params.get("runner"))]:
            raise ConfigurationError(  # docs/decisions/0125
                f"expected the SequentialRunner, found the {parallel[0]}: each node uses all cores itself, and nodes "
                "share one model. Leave --runner out; training.launch.processes sets the processes of training."
            )
        for name in given(_OLDER):
            log.warning("the environment variable %s is not read; use --params %s=VALUE", name, _OLDER[name])
        self._locks.close()
        self._catalog = catalog
        parameters, self._executed, found = catalog.load("parameters"), executed_by(pipeline), hosts()
        self._first = found.is_first  # this host writes the outputs and records the run
        if not self._first and (others := self._executed.keys() - _ON_HOSTS):
            raise ConfigurationError(  # docs/decisions/0167
                f"expected only embedding and training on host {found.node_rank} of {found.nodes or 'several'}, found "
                f"{', '.join(sorted(others))}. Run the others on one host, before or after: `NNODES=1 kedro run "
                "--pipelines=…`; ingestion also runs on a Ray cluster (docs/ray.md)."
            )
        if parameters.get("run") is not None:
            self._refuse_beyond_samples(self._executed)
            log.info("run %s: the results are written to %s", parameters["run"], self._outputs)
        typed = check_parameters(parameters)
        for name, section in typed.items():
            catalog[f"params:{name}"] = MemoryDataset(section, copy_mode="assign")
        self._check_machine(pipeline, typed)
        for feature in planned(typed).values() if "ingestion" in self._executed else ():
            feature.refuse_sources(typed["ingestion"].sources)
        samples = typed["sampling"].rows and typed["sampling"].tasks != ()
        read = {
            "training": splits_read(typed["training"]),
            "sampling": {"sampling.rows": typed["sampling"].split} if samples else {},
        }
        self._splits = {key: split for name in self._executed for key, split in read.get(name, {}).items()}
        self._earlier = catalog.load(TIMINGS) if catalog.exists(TIMINGS) else {}
        self._seconds.clear()
        if self._first:
            folders = {part: Path(self._entries[entry]["filepath"]).parents[1] for part, entry in FOLDERS.items()}
            with ExitStack() as held:
                lock_folders(held, pipeline, folders)
                self._refuse_missing(pipeline, run_params)
                for entry in map(catalog.get, (*pipeline.all_outputs(), TIMINGS)):
                    if path := getattr(entry, "_filepath", None) or getattr(entry, "_path", None):  # of a killed run
                        remove_temporaries(path)
                        remove_temporaries(Path(path).parent)
                self._locks = held.pop_all()
            log.info("this run: %s; %d nodes", " → ".join(self._executed), sum(map(len, self._executed.values())))
            log.info("results: %s", self._outputs)
        self._last = None

    def _refuse_missing(self, pipeline: Pipeline, run_params: Mapping[str, Any]) -> None:
        """Refuse inputs that no run has written and no node makes; name all pipelines of the main job, or the nodes.

        Raises:
            StoreError: there are some.
        """
        from kedro.framework.project import pipelines

        optional = {name for name, entry in self._entries.items() if entry.get("optional")}
        lacking, first = self._absent(pipeline.inputs() - optional), list[str]()
        in_memory = {name for name in lacking if self._entries.get(name, {}).get("type") == "MemoryDataset"}
        needed, found = lacking - in_memory, in_memory
        for name in reversed(MAIN):
            if missing := needed & pipelines[name].all_outputs():
                first, found, needed = [name, *first], found | missing, needed | self._absent(pipelines[name].inputs())
        if not found:
            return
        makers = {node.name for graph in pipelines.values() for node in graph.nodes if in_memory & {*node.outputs}}
        do = [f"Run first: {command_of(run_params, first)}"] * bool(first)
        do += [f"Add the nodes whose results are only in memory: --nodes={','.join(sorted(makers))},…"] * bool(makers)
        names = ", ".join(sorted(found & lacking))
        raise StoreError(f"this run: expected the artifacts of earlier nodes, found no {names}. {'. '.join(do)}")

    def _absent(self, names: set[str]) -> set[str]:
        """Return the inputs that do not exist, except folders that nodes fill."""
        folders = {name for name, entry in self._entries.items() if "Workspace" in entry["type"]}
        return {name for name in names - folders if not self._catalog.exists(name)}

    def _check_machine(self, pipeline: Pipeline, typed: Mapping[str, Any]) -> None:
        from mm_ldlm.training.initial import refuse_missing_origin

        read = {name.removeprefix("params:") for name in pipeline.inputs()}
        launches = any("training_spec" in node.inputs for node in pipeline.nodes)
        embeds = "embedding" in read and from_encoder(objective=typed["objective"], model=typed["model"])
        only_plans = "training_spec" in pipeline.all_outputs() and not launches
        # Validation reads only the texts of `evaluation`, which must not be trained on.
        evaluates = any("params:evaluation" in node.inputs for node in pipeline.nodes if "validation" not in node.tags)
        used = {"training": not only_plans, "encoder": embeds, "evaluation": evaluates}
        unused = {name for name in used if not used[name]}
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

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @hook_impl
    def before_dataset_loaded(self, dataset_name: str, node: Node) -> None:
        self.loading = dataset_name
        self._count(node)
        if dataset_name == TIMINGS:
            self._save_timings(node)

    @hook_impl
    def after_dataset_loaded(self) -> None:
        self.loading = None

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Log which node runs.

        The nodes of sampling and evaluation log this themselves, if they have something to do.
        """
        if not node.tags & {"sampling", "evaluation"}:
            log.info("%s · %s", "+".join(name for name in PIPELINES if name in node.tags), node.name.rpartition(".")[2])

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        self._count(node)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any, node: Node) -> None:
        self._count(node)
        if dataset_name == "preparation_report":
            refuse_empty_splits(data["splits"], read=self._splits)

    def _count(self, node: Node) -> None:
        """Add the time since the last event to the pipeline of the node."""
        now = time.perf_counter()
        for name in node.tags:
            self._seconds[name] += now - (self._last or now)
        self._last = now

    def _save_timings(self, running: Node | None = None) -> None:
        """Save the seconds of all pipelines but the one of the node that is still running.

        A pipeline of which only some nodes run keeps its earlier time.
        """
        if self._first:
            found = {**self._earlier, **self._seconds}
            found |= {name: self._earlier[name] for name in partly(self._executed) & self._earlier.keys()}
            tags = running.tags if running is not None else set()
            self._catalog.save(TIMINGS, {name: round(found[name], 3) for name in found if name not in tags})

    # -- after the last node -------------------------------------------------------------------------------------------

    @hook_impl
    def after_pipeline_run(self) -> None:
        self._save_timings()
        seconds = {name: self._seconds[name] for name in self._executed}
        parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
        log.info("seconds: %s; together %.0f", parts, sum(seconds.values()))
        self._locks.close()

    @hook_impl
    def on_pipeline_error(self) -> None:
        self._locks.close()


def command_of(run_params: Mapping[str, Any], names: Sequence[str]) -> str:
    """Write the command that runs other pipelines in the environment of this run."""
    env = f" --env={run_params['env']}" if run_params.get("env") else ""
    again = ", with the same --params" if run_params.get("runtime_params") else ""
    return f"kedro run{env} --pipelines={','.join(names)}{again}"
