"""The runs of MLflow, through a client with an explicit URI and run id and without global state.

MLflow's fluent interface would mark an interrupted run as FINISHED when the process exits; the client does not. MLflow
retries requests for minutes; `settings.py` sets lower limits, and `within` bounds every exchange, whatever the store: a
server that answers a byte per second, a locked database.
"""

import contextlib
import functools
import json
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mm_ldlm.core import TrackingError, foreign_code, mask, reason_of
from mm_ldlm.core.files import recorded, refuse_other
from mm_ldlm.core.locks import wait
from mm_ldlm.extras.mlflow.metric_names import EVALUATION, HEADLINE, name_of

log = logging.getLogger(__name__)
T = TypeVar("T")

METRICS = "metrics.json"
"""Artifact with the numbers of an evaluation"""
CONTINUES = "mm_ldlm.continues"
"""Tag of a local run that has the last part of a run of another store, with the id of that run"""
LOCAL = "sqlite:///data/mlflow_local.db"
"""Database of the runs whose tracking store did not answer, relative to the project's root"""
LONGEST, LONGEST_LOCAL, LONGEST_UPLOAD = 12.0, 120.0, 120.0
"""Seconds for one exchange with a server, and with a database in a file, whose tables MLflow creates first; and for one
that uploads a folder"""
_SQLITE = "sqlite:///"
_LONGEST_DIGEST, _LONGEST_VALUE, _BATCH, _POINTS = 36, 6000, 100, 1000
"""MLflow's limits: characters of a digest and of a value, parameters and points of curves in one request"""


class MlflowRun:
    """One run of a tracking store. Every method is one exchange with the store, which may fail or take long."""

    def __init__(self, uri: str, run_id: str) -> None:
        self.uri, self.run_id = uri, run_id
        self._monitor: Any = None

    @functools.cached_property
    def client(self) -> Any:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # silences one line per migration of a new database
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        return MlflowClient(tracking_uri=self.uri)

    def probe(self) -> None:
        """Raise TrackingError if the store does not answer in time."""
        import mlflow.entities  # noqa: F401  # takes seconds, which are no waiting for the store

        within(functools.partial(self.client.search_experiments, max_results=1), self.uri)

    def create(
        self, *, experiment: str, name: str, parameters: Mapping[str, Any], parent: str | None,
        start_time: int | None = None,
    ) -> None:  # fmt: skip
        """Start the run with its flat parameters, nested in the run `parent` where one is given."""
        from mlflow.entities import Param

        # The artifacts are next to a database, and not in the working directory; a server has its own place.
        beside = Path(self.uri.removeprefix(_SQLITE)).parent if self.uri.startswith(_SQLITE) else None
        place = None if beside is None else (beside / "mlartifacts").as_uri()
        # MLflow's first access creates the tables of a database, and fails if another process does so at that time.
        with contextlib.nullcontext() if beside is None else wait(beside / ".mlflow.lock"):
            found = self.client.get_experiment_by_name(experiment)
            if (
                place
                and found
                and found.artifact_location.endswith("/mlartifacts")
                and found.artifact_location != place
            ):
                # The database was copied, and its artifacts would go to the folder that it was copied from.
                experiment = f"{experiment} in {beside}"
                found = self.client.get_experiment_by_name(experiment)
            identity = found.experiment_id if found else self.client.create_experiment(experiment, place)
        # The view that an experiment opens in; without the tag MLflow asks, or guesses from the first run.
        self.client.set_experiment_tag(identity, "mlflow.experimentKind", "custom_model_development")
        nested = {"mlflow.parentRunId": parent} if parent else {}
        self.run_id = self.client.create_run(identity, start_time, nested, name).info.run_id
        params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in parameters.items()]
        for start in range(0, len(params), _BATCH):
            self.client.log_batch(self.run_id, params=params[start : start + _BATCH])

    def tag(self, tags: Mapping[str, str], *, name: str | None = None) -> None:
        """Set tags, and the name of the run if one is given."""
        from mlflow.entities import RunTag

        self.client.log_batch(self.run_id, tags=[RunTag(key, text[:_LONGEST_VALUE]) for key, text in tags.items()])
        if name is not None:
            self.client.update_run(self.run_id, name=name)

    def add_metrics(self, values: Mapping[str, Any], *, first: Collection[str]) -> None:
        """Log the finite numbers among the values of `metrics.json`; names in `first` go to the first group."""
        names = {key: f"{HEADLINE}/{key}" if key in first else f"{EVALUATION}/{key.replace('.', '/', 1)}"
                 for key in values}  # fmt: skip
        self._log([(names[key], value, 0) for key, value in values.items()])

    def add_lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log the metric lines of a training log (`{"step": …, name: number, …}`).

        The last event becomes the tag `last_event`, and the last sentence that the model showed the tag `preview`.
        """
        metrics = [line for line in lines if "event" not in line]
        self._log([(name_of(key), value, line["step"]) for line in metrics for key, value in line.items()])
        tags = {}
        for line in lines:
            if line.get("event") == "preview":
                tags["preview"] = " → ".join(text for text in (line.get("original"), line["text"]) if text is not None)
            elif line.get("event", "start") not in ("start", "checkpoint"):
                tags["last_event"] = str(dict(line))
        if tags:
            self.tag(tags)

    def _log(self, values: Sequence[tuple[str, Any, int]]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.add_points(
            [
                Metric(name, float(value), now, step)
                for name, value, step in values
                if isinstance(value, (int, float)) and math.isfinite(value) and not name.endswith("/step")
            ]
        )

    def add_points(self, points: Sequence[Any]) -> None:
        """Log points of curves."""
        for start in range(0, len(points), _POINTS):
            self.client.log_batch(self.run_id, metrics=points[start : start + _POINTS])

    def add_datasets(self, digests: Mapping[str, str], *, context: str, profile: Any = None) -> None:
        """Log datasets by name with their digests as inputs of the run."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        tags = [InputTag("mlflow.data.context", context)]
        about = None if profile is None else json.dumps(profile)
        inputs = [
            DatasetInput(
                Dataset(name, digest[:_LONGEST_DIGEST], "local", json.dumps({"uri": name}), profile=about), tags
            )
            for name, digest in digests.items()
        ]
        self.client.log_inputs(self.run_id, inputs)

    def add_text(self, text: str, file: str) -> None:
        """Log a text as the artifact `file`."""
        self.client.log_text(self.run_id, text, file)

    def watch(self) -> None:
        """Record the load of the machine every 10 seconds, in a thread, until the run is closed."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(self.run_id, tracking_uri=self.uri)
        self._monitor.start()

    def add_folder(self, folder: Path, at: str) -> None:
        """Log the files of a folder as artifacts below `at`."""
        self.client.log_artifacts(self.run_id, str(folder), at)

    def add_plots(self, figures: Mapping[str, Any]) -> None:
        """Log figures as pages, which load plotly.js from its network; `report.html` contains it."""
        for name, figure in figures.items():
            self.add_text(figure.to_html(include_plotlyjs="cdn"), f"plots/{name}.html")

    def add_model(
        self, folder: Path, name: str, step: int, *, register: Callable[..., str] | None = None
    ) -> str | None:  # fmt: skip
        """Log the folder of an MLflow model as an output of the run; return what `register` decides, if it is given.

        A model that is recorded locally is registered when it is sent.
        """
        from mlflow.entities import LoggedModelOutput

        run = self.client.get_run(self.run_id)
        model = self.client.create_logged_model(run.info.experiment_id, name=name, source_run_id=self.run_id)
        self.client.log_model_artifacts(model.model_id, str(folder))
        self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        return None if register is None or self.uri.endswith(Path(LOCAL).name) else register(self, model)

    def close(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        if self._monitor is not None:
            self._monitor.finish()
        self.client.set_terminated(self.run_id, status=status)


def metrics_of(uri: str, run_id: str) -> dict[str, Any]:
    """Return the metrics.json that a run of the store at `uri` has recorded; empty for another run, or without one."""
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as folder:
            return recorded(MlflowRun(uri, run_id).client.download_artifacts(run_id, METRICS, folder)) or {}
    except (MlflowException, OSError):
        return {}


def open_somewhere(uri: str, *, root: Path, parent: str | None, **about: Any) -> MlflowRun | None:
    """Create a run at `uri`, or else in the local database; None where both fail.

    Args:
        root: the project's root, from which relative databases are resolved.
        parent: id of the run at `uri` that this one is nested in.
        about: further arguments of `MlflowRun.create`.
    """
    import mlflow.entities  # noqa: F401  # takes seconds, which are no waiting for the store

    failures = []
    for place in dict.fromkeys([uri, LOCAL]):
        try:
            run = MlflowRun(resolved(place, root), "")
            within(functools.partial(run.create, parent=parent if place == uri else None, **about), place)
        except TrackingError as error:
            failures.append(f"{mask(place)}: {error}")
            continue
        if failures:
            log.warning(
                "MLflow cannot open %s; this run is recorded in %s instead. Show it by `mlflow ui "
                "--backend-store-uri %s`, or send it by `mm-ldlm send-runs URI` when the store answers",
                "; ".join(failures), LOCAL, run.uri,
            )  # fmt: skip
        return run
    log.warning("this run is not tracked, because no store could be opened (%s)", "; ".join(failures))
    return None


def resolved(uri: str, root: Path) -> str:
    """Resolve a relative sqlite path from `root` and create its folder; return other URIs unchanged.

    Raises:
        TrackingError: the database is not a regular file (opening a pipe may never end), or nothing can be written to
            it or to its folder, in which SQLite writes too; MLflow would repeat the attempt for minutes.
    """
    if not uri.startswith(_SQLITE):
        return uri
    path = root.resolve() / uri.removeprefix(_SQLITE)  # an absolute path stays
    refuse_other(path, error=TrackingError)
    with foreign_code(TrackingError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent), open(path, "ab"):
            pass
    return f"{_SQLITE}{path.as_posix()}"


def within(call: Callable[[], T], uri: str, *, at_least: float = 0.0) -> T:
    """Return what a call of the store at `uri` returns, if it does so within the time for such a store.

    A call that takes longer is left in a daemon thread; the timeouts of MLflow end it.

    Raises:
        TrackingError: it took longer, or it raised an exception; the message contains the reason on one line.
    """
    seconds = max(LONGEST_LOCAL if uri.startswith("sqlite:") else LONGEST, at_least)
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="tracking", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    raise TrackingError(reason_of(errors[0]) if errors else f"no answer within {seconds:g} s") from None
