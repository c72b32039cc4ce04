"""The MLflow run of a Kedro run: opened before the first node, filled while the nodes run, closed at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.app.hooks.names import DATASET, FILES, METRICS, ORDER, RUN, TRAINING_SPEC
from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import TrackingError
from mm_ldlm.pipelines import MAIN

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline

    from mm_ldlm.app.tracking.record import Record

log = logging.getLogger(__name__)


class TrackedRun:
    """The MLflow run of this Kedro run; every method does nothing where there is none.

    Args:
        project: folder of the project, which paths are relative to.
        runs: folder of the runs.
    """

    def __init__(self, *, project: Path, runs: Callable[[], Path]) -> None:
        self._project, self._runs = project, runs
        self.address: tuple[str, str] | None = None
        """Tracking URI and run id of the open MLflow run."""
        self._record: Record | None = None
        self._spec: Mapping[str, Any] = {}  # of the run that this session is to train
        self._log_before: int | None = None  # when its log was last written, before this session

    def open(
        self, tracking: Any, parameters: Mapping[str, Any], run_params: Mapping[str, Any], pipeline: Pipeline
    ) -> None:
        """Open the MLflow run and describe the command."""
        from mm_ldlm.app.parameters import flatten
        from mm_ldlm.app.tracking.description import clean, command
        from mm_ldlm.app.tracking.opening import open_somewhere
        from mm_ldlm.app.tracking.record import Record
        from mm_ldlm.app.tracking.source import commit

        names = _executed(pipeline) or ",".join(run_params.get("pipeline_names") or ["all"])
        environment = run_params.get("env") or "local"
        name = tracking.run_name or f"{names}@{environment}"
        line = command(sys.argv, project=self._project)
        self.address = open_somewhere(
            tracking.uri,
            root=self._project,
            experiment=tracking.experiment,
            name=name,
            parent=tracking.parent_run,
            parameters=clean(flatten(dict(parameters)), project=self._project),
            tags={
                "pipelines": names,
                "command": line,
                "environment": environment,
                "kedro_run": run_params["run_id"],
                **commit(self._project),
            },
        )
        if self.address is not None:
            uri, run_id = self.address
            log.info("MLflow run %s in experiment '%s' at %s", run_id, tracking.experiment, mask(uri))
            chosen = name if tracking.run_name is None else None
            self._record = Record(uri, run_id, project=self._project, name=chosen, pipelines=names, command=line)

    def loaded(self, dataset_name: str, data: Any) -> None:
        """Add what a node has loaded."""
        if self._record is not None and dataset_name == TRAINING_SPEC and isinstance(data, dict):
            self._spec, self._log_before = data, self._last_written(data)
            self._name_folder(str(data.get("name", "")))
        self._add(dataset_name, data, trained=False)

    def saved(self, dataset_name: str, data: Any) -> None:
        """Add what a node has saved; send a report."""
        trained = dataset_name == RUN and (not self._spec or self._last_written(self._spec) != self._log_before)
        self._add(dataset_name, data, trained=trained)
        if self.address is None or dataset_name not in FILES:
            return
        from mm_ldlm.app.tracking.mlflow import log_text

        uri, run_id = self.address
        _send(uri, lambda: log_text(uri, run_id, data, file=FILES[dataset_name]))

    def close(self, status: str, *, reason: str | None = None) -> None:
        """Close the run as FINISHED, FAILED or KILLED."""
        if self.address is None:
            return
        from mm_ldlm.app.tracking.mlflow import close_run

        (uri, run_id), self.address = self.address, None
        record, self._record = self._record, None
        if record is not None:
            _send(uri, record.describe)
        _send(uri, lambda: close_run(uri, run_id, status=status, reason=reason))

    def _add(self, dataset_name: str, data: Any, *, trained: bool) -> None:
        """Add a dataset, a run or its numbers to the record."""
        record = self._record
        if record is None or dataset_name not in (METRICS, DATASET, RUN):
            return
        from mm_ldlm.app.tracking.names import MOST_HEADLINES
        from mm_ldlm.evaluation.headline import most_important
        from mm_ldlm.training.checkpoints.reference import run_folder

        def call() -> None:
            if dataset_name == METRICS:
                record.add_metrics(data, first=most_important(data, count=MOST_HEADLINES))
            elif dataset_name == RUN:
                record.add_run(data, run_folder(self._runs(), data), trained=trained)
            elif hasattr(data, "fingerprints") and not record.has_dataset(data.fingerprint):
                # A node saves a mapping of stores instead, and every suite loads the same dataset again.
                place = data.directory.resolve()
                inside = place.is_relative_to(self._project.resolve())
                name = place.relative_to(self._project.resolve()).as_posix() if inside else place.name
                sizes = {split: len(data.rows(split)) for split in ("train", "validation", "test")}
                record.add_dataset(name, data.fingerprint, data.fingerprints, examples=sizes)

        _send(record.uri, call)

    def _name_folder(self, name: str) -> None:
        """Tag the MLflow run with the folder that it trains, so that one that fails leads to it as well."""
        from mm_ldlm.app.tracking.mlflow import annotate

        if self.address is not None and name:
            uri, run_id = self.address
            _send(uri, lambda: annotate(uri, run_id, {"run_folder": name}))

    def _last_written(self, spec: Mapping[str, Any]) -> int | None:
        """Return when the log of the run of a spec was last written, in nanoseconds. A training writes it."""
        from mm_ldlm.training.status import LOG

        file = self._runs() / str(spec.get("name")) / LOG
        return file.stat().st_mtime_ns if file.is_file() else None


def _send(uri: str, call: Callable[[], None]) -> None:
    """Send something to the tracking store within a bounded time; a run goes on without an answer."""
    from mm_ldlm.app.tracking.opening import longest, within

    try:
        within(call, seconds=longest(uri))
    except TrackingError as error:
        log.warning("MLflow does not answer (%s); the run goes on, and its files have everything", error)


def _executed(pipeline: Pipeline) -> str:
    """Name the pipelines of the nodes that run; those of which only some nodes run with their nodes."""
    from kedro.framework.project import pipelines

    from mm_ldlm.app.tracking.description import by_pipeline, name_of

    executed = by_pipeline(pipeline.nodes, ORDER)
    whole = by_pipeline([node for name in executed if name in pipelines for node in pipelines[name].nodes], ORDER)
    return name_of(executed, whole, MAIN)
