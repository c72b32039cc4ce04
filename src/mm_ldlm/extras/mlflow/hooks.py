"""Hooks that record a run in MLflow: what was executed, with which parameters, on what data, and what came out."""

import atexit
import functools
import json
import logging
import math
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.framework.hooks import hook_impl

from mm_ldlm.app.follower import Follower, follower_of
from mm_ldlm.core import TrackingError, mask, mask_values, purposeful, reason_of
from mm_ldlm.core.files import recorded
from mm_ldlm.extras.mlflow.client import (
    CONTINUES,
    LOCAL,
    LONGEST_UPLOAD,
    METRICS,
    MlflowRun,
    metrics_of,
    open_somewhere,
    within,
)
from mm_ldlm.extras.mlflow.metric_names import MOST_HEADLINES
from mm_ldlm.pipelines import MAIN, executed_by, partly
from mm_ldlm.training.checkpoints.provenance import MADE_BY, weights_in
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, EVALUATION, run_folder

if TYPE_CHECKING:
    from kedro.framework.context import KedroContext
    from kedro.io import CatalogProtocol
    from kedro.pipeline import Pipeline

    from mm_ldlm.data.dataset_manifest import Dataset

log = logging.getLogger(__name__)

PAGES = {"report": "report.html", "comparison_report": "comparison.html", "score_card_report": "score_card.html"}
"""Catalog entry → name of its copy in the MLflow run"""
PAUSE = 60.0
"""Seconds after which calls of a store that did not answer are made again"""
NOTE = "mlflow.note.content"
"""Tag with the Markdown text that MLflow shows as the description of a run"""
_ABSOLUTE = re.compile(
    r"(?<=sqlite:///)/(?:[^\s/'\"=,;()\[\]{}]+/)+|(?<![\w.:/~-])(?:[A-Za-z]:)?/(?:[^\s/'\"=,;()\[\]{}]+/)+"
)
"""Folders of an absolute path, up to its last part; the path of an address (http://host/x) is none"""


class TrackingHooks:
    """Records each run of this process, one at a time, on the first of several hosts."""

    def __init__(self) -> None:
        self._project, self._runs = Path(), Path()
        self._run: MlflowRun | None = None
        self._follower: Follower | None = None
        self._unsent: list[tuple[str, tuple[Any, ...], dict[str, Any], float]] = []
        self._resting_until = -math.inf
        # Ctrl-C and SystemExit do not reach `on_pipeline_error`: Kedro calls it for `Exception` only.
        atexit.register(self._close, "KILLED")

    # -- the run -------------------------------------------------------------------------------------------------------

    @hook_impl
    def after_context_created(self, context: "KedroContext") -> None:
        self._project = context.project_path

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: "Pipeline", catalog: "CatalogProtocol") -> None:
        """Open the MLflow run, and save its address to the catalog for the nodes."""
        from mm_ldlm.distributed.environment import hosts
        from mm_ldlm.training.checkpoints.weights import flat

        self._close("KILLED")
        if not hosts().is_first:
            return
        tracking, environment = catalog.load("params:tracking"), run_params.get("env") or "local"
        self._recorded, self._facts, self._headline = set[str](), dict[str, str](), dict[str, float]()
        self._reference: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._unsent.clear()
        self._resting_until = -math.inf
        self._rows, self._tracking = dict[str, Any](), tracking
        self._pipelines = _executed(executed_by(pipeline))
        self._name = None if tracking.run_name else f"{self._pipelines}@{environment}"  # unless the user chose it
        program = Path(sys.argv[0])
        begin = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
        self._command = self._clean(f"{begin} {shlex.join(sys.argv[1:])}")
        if tracking.enabled:
            parameters = self._clean(flat(catalog.load("parameters")))
            self._run = open_somewhere(
                tracking.uri, root=self._project, parent=tracking.parent_run, experiment=tracking.experiment,
                name=tracking.run_name or self._name, parameters=parameters,
            )  # fmt: skip
        if self._run is not None:
            log.info("MLflow run %s at %s", self._run.run_id, mask(self._run.uri))
            if tracking.system_metrics:
                self._send("watch")
        about = {
            "pipelines": self._pipelines, "environment": environment, "command": self._command,
            "mlflow.source.name": begin, "mlflow.source.type": "LOCAL",  # without them MLflow hides the commit
        }  # fmt: skip
        self._send("tag", about | {"kedro_run": run_params["run_id"]} | _commit(self._project))
        run = self._run
        catalog.save("tracking_reference", {"tracking_uri": run and run.uri, "run_id": run and run.run_id})
        if self._run is not None:
            catalog.save("tracked_metrics", functools.partial(metrics_of, self._run.uri))

    @hook_impl
    def after_pipeline_run(self) -> None:
        self._close("FINISHED")

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        self._unfollow()  # its thread sends too
        self._send("tag", {"reason": self._clean(reason_of(purposeful(error) or error, 2000))})
        self._close("FAILED")

    def _close(self, status: str) -> None:
        self._unfollow()
        if self._run is not None:
            with tempfile.TemporaryDirectory() as folder:
                if status == "FINISHED" and weights_in(self._metrics.get(MADE_BY)):
                    self._record_result(Path(folder))
                self._send("tag", {NOTE: self._note()})
                self._send("close", status)
                self._send_rest(self._run)
            self._run = None

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @hook_impl
    def before_node_run(self, inputs: dict[str, Any]) -> None:
        """Send the log of a training while the node runs."""
        if self._run is not None and {"training_spec", "runs"} <= inputs.keys():
            self._send("tag", {"run_folder": str(inputs["training_spec"]["name"])})  # also of a run that fails
            self._follower = follower_of(inputs, functools.partial(self._send, "add_lines"))

    @hook_impl
    def after_node_run(self) -> None:
        self._unfollow()

    def _unfollow(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            if self._follower.lines:
                self._recorded.add("trained")
            self._follower = None

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str, data: Any) -> None:
        if dataset_name == "runs":
            self._runs = data
        self.after_dataset_saved(dataset_name, data)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Record what a node has loaded or saved, once."""
        if self._run is None or dataset_name in self._recorded:
            return
        if dataset_name in PAGES:
            self._send("add_text", data, PAGES[dataset_name])
        elif dataset_name == "figures":
            self._send("add_plots", data, at_least=LONGEST_UPLOAD)
        elif dataset_name.endswith("_rows"):
            self._rows[dataset_name.removesuffix("_rows")] = data
        elif dataset_name == "metrics":
            self._record_metrics(data)
        elif dataset_name == "run" and self._runs != Path():
            self._record_run(data)
        elif dataset_name == "dataset" and hasattr(data, "fingerprints"):  # a node saves a mapping of stores instead
            self._record_dataset(data)
        else:
            return
        self._recorded.add(dataset_name)

    def _record_metrics(self, metrics: Mapping[str, Any]) -> None:
        from mm_ldlm.evaluation.suites import headlines

        self._metrics = metrics
        leading = [headline.key for headline in headlines(metrics) if headline.leading]
        self._headline = {key: metrics[key] for key in leading[:MOST_HEADLINES]}
        self._send("add_metrics", metrics, first=self._headline)
        self._send("add_text", json.dumps(self._clean(dict(metrics)), indent=1), METRICS)

    def _record_run(self, reference: Mapping[str, Any]) -> None:
        """Record the run folder, its fingerprint and its configuration."""
        name, self._reference = str(reference["name"]), reference
        tags = {
            "run_folder": name,
            "trained_here": str("trained" in self._recorded).lower(),
            "step": str(reference.get("step", "")),
            "checkpoint": str(reference.get("checkpoint", "")),
            "run_fingerprint": str(reference.get("fingerprint", "")),
        }
        self._send("tag", tags, name=None if self._name is None else f"{self._name} {name}")
        config = recorded(run_folder(self._runs, reference) / "config.json") or {}
        shown = self._clean({key: value for key, value in config.items() if key != "tracking"})
        self._send("add_text", json.dumps(shown, indent=1), "config.json")
        kinds = ", ".join(f"{part} {config[part].get('kind')}" for part in ("model", "objective") if part in config)
        self._facts["run"] = f"{name}: {kinds}, {tags['step']} steps, fingerprint {tags['run_fingerprint']}"

    def _record_dataset(self, dataset: "Dataset") -> None:
        """Record the validated dataset and its stores with their fingerprints."""
        place, root = dataset.directory.resolve(), self._project.resolve()
        name = place.relative_to(root).as_posix() if place.is_relative_to(root) else place.name
        sizes = {split: len(dataset.rows(split)) for split in ("train", "validation", "test")}
        self._send("add_datasets", {name: dataset.fingerprint}, context=", ".join(sizes), profile=sizes)
        self._send("add_datasets", dataset.fingerprints, context="store of the dataset")
        self._send("tag", {"dataset_fingerprint": dataset.fingerprint})
        examples = ", ".join(f"{number:,} {split}" for split, number in sizes.items())
        self._facts["dataset"] = f"{name}, fingerprint {dataset.fingerprint}, examples: {examples}"

    def _record_result(self, folder: Path) -> None:
        """Record the tables of an evaluated run, and its model, which may become the best of the registry."""
        from mm_ldlm.evaluation.compare import Result, keep
        from mm_ldlm.extras.mlflow.model import save_model
        from mm_ldlm.extras.mlflow.registry import register
        from mm_ldlm.inference.exporting import source_of

        result = Result(str(self._reference["name"]), self._metrics, self._rows)
        weights, named = self._metrics[MADE_BY], self._tracking.register
        checkpoint = run_folder(self._runs, self._reference) / CHECKPOINTS / weights["checkpoint"]
        try:
            keep(result, folder)
            self._send("add_folder", folder / EVALUATION, EVALUATION, at_least=LONGEST_UPLOAD)
            if self._tracking.log_model:
                save_model(source_of(checkpoint, folder / "new", use_ema=weights["weights"] == "averaged"), folder)
                decided = self._send(
                    "add_model", folder / "model", result.name, int(self._reference.get("step", 0)),
                    register=functools.partial(register, name=named, ours=result) if named else None,
                    at_least=LONGEST_UPLOAD,
                )  # fmt: skip
                log.info("MLflow: %s", decided or "the model is recorded with the run")
        except Exception as error:  # a run whose model cannot be loaded is a run all the same
            log.warning("the model is not logged in MLflow (%s)", reason_of(error))

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send(self, method: str, *arguments: Any, at_least: float = 0.0, **named: Any) -> Any:
        """Call a method of the MLflow run, if there is one, within a bounded time; a run continues without an answer.

        Calls that fail are made again, in their order, after `PAUSE` seconds and at the end of the run.
        """
        if self._run is None:
            return None
        self._unsent.append((method, arguments, named, at_least))
        if time.monotonic() < self._resting_until:
            return None
        try:
            return self._deliver(self._run)
        except TrackingError as error:
            if self._resting_until == -math.inf:
                log.warning("MLflow does not answer (%s); the run continues, and is recorded later", error)
            self._resting_until = time.monotonic() + PAUSE
            return None

    def _deliver(self, run: MlflowRun) -> Any:
        """Make the waiting calls; return the answer of the last one."""
        answer = None
        while self._unsent:
            method, arguments, named, at_least = self._unsent[0]
            answer = within(functools.partial(getattr(run, method), *arguments, **named), run.uri, at_least=at_least)
            self._unsent.pop(0)
        self._resting_until = -math.inf
        return answer

    def _send_rest(self, run: MlflowRun) -> None:
        """Make the calls that failed once more; those that fail again are recorded in a local run."""
        try:
            self._deliver(run)
        except TrackingError as error:
            log.warning(
                "MLflow does not answer at the end of this run (%s): the missing part is recorded in %s. Send it by "
                "`mm-ldlm send-runs %s` when the store answers", error, LOCAL, mask(run.uri),
            )  # fmt: skip
            self._unsent.insert(0, ("tag", ({CONTINUES: run.run_id},), {}, 0.0))
            local = open_somewhere(
                LOCAL, root=self._project, parent=None, experiment=self._tracking.experiment, parameters={},
                name=self._name or self._pipelines,
            )  # fmt: skip
            try:
                if local is not None:
                    self._deliver(local)
            except TrackingError as another:
                log.warning("MLflow lacks the last part of this run, whose files are complete (%s)", another)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _clean(self, value: Any) -> Any:
        """Replace the folders of absolute paths by "…/", the folders of the project by nothing; mask credentials."""
        if isinstance(value, str):
            return _ABSOLUTE.sub("…/", mask(value.replace(f"{self._project.as_posix()}/", "")))
        if isinstance(value, Mapping):
            return {mask(str(key)): self._clean(mask_values(item, key=str(key))) for key, item in value.items()}
        return [self._clean(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _note(self) -> str:
        """Compose the description of the run: first the headline numbers, then what was executed on what."""
        numbers = " · ".join(f"{name} **{value:.4g}**" for name, value in self._headline.items())
        facts = {"pipelines": self._pipelines, "command": f"`{self._command}`", **self._facts}
        table = ["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in facts.items())]
        return "\n".join([numbers, "", *table])


def _executed(executed: Mapping[str, Sequence[str]]) -> str:
    """Name what a run executes: "all", "sampling,evaluation", "training (plan_training)"."""
    from kedro.framework.project import pipelines

    parts, incomplete = [], partly(executed)
    for name, nodes in executed.items():
        short = ", ".join(node.rpartition(".")[2] for node in nodes)
        part = short if len(nodes) < 3 else f"{len(nodes)} of {len(pipelines[name].nodes)} nodes"
        parts.append(f"{name} ({part})" if name in incomplete else name)
    return "all" if parts == list(MAIN) else ",".join(parts)


def _commit(project: Path) -> dict[str, str]:
    """Return the commit of the source and whether the working tree differs from it; empty outside a git checkout."""
    git = functools.partial(subprocess.check_output, cwd=project, stderr=subprocess.DEVNULL, text=True)
    try:
        commit, changes = git(["git", "rev-parse", "HEAD"]), git(["git", "status", "--porcelain"])
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"mlflow.source.git.commit": commit.strip(), "git.dirty": str(bool(changes)).lower()}
