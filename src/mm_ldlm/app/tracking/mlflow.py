"""MLflow, used only in this file, through a client with an explicit URI and run id and without global state.

MLflow's fluent interface would mark an interrupted run as FINISHED when the process exits; the client does not.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.app.tracking import names
from mm_ldlm.app.tracking.description import without_paths
from mm_ldlm.core.credentials import mask
from mm_ldlm.core.errors import ConfigurationError, TrackingError
from mm_ldlm.core.files import problem
from mm_ldlm.core.messages import reason_of

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"
_LONGEST_DIGEST = 36  # characters, MLflow's own limit
_LONGEST_VALUE = 6000  # characters of a parameter, MLflow's own limit
_BATCH = 100  # parameters in one request, MLflow's own limit
_KIND = "mlflow.experimentKind"
"""Tag that chooses the view that an experiment opens in; without it MLflow asks, or guesses from the first run"""


def resolve_uri(uri: str, *, root: Path) -> str:
    """Resolve a relative sqlite path from `root` and create its folder; return other URIs unchanged.

    Raises:
        TrackingError: the database exists and is no regular file: opening a pipe may never end. Or nothing can be
            written to it, or to its folder, in which SQLite writes too; MLflow would repeat the attempt for minutes.
    """
    if not uri.startswith(_SQLITE):
        return uri
    path = root.resolve() / uri.removeprefix(_SQLITE)  # an absolute path stays
    if path.exists() and (fault := problem(path)) is not None:
        raise TrackingError(f"the database {fault}")
    for place in (path, path.parent):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            raise TrackingError(f"{place} cannot be read and written (no permission)")
    if uri.startswith(_SQLITE + "/"):
        return uri
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"{_SQLITE}{path.as_posix()}"


def load() -> None:
    """Import MLflow, which takes seconds, so that they do not count as waiting for its store."""
    import mlflow.entities  # noqa: F401


def client(uri: str) -> MlflowClient:
    """Return a client of the tracking server or database at `uri`."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # silences one line per migration of a new database
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def open_run(
    uri: str,
    *,
    experiment: str,
    name: str,
    parameters: Mapping[str, Any],
    tags: Mapping[str, str],
    parent: str | None = None,
) -> str:
    """Start a run with its flat parameters and tags, nested in the run `parent` where one is given; return its id.

    Raises:
        ConfigurationError: The tracking store cannot be reached or opened.
    """
    from mlflow.entities import Param
    from mlflow.exceptions import MlflowException
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    nested = {MLFLOW_PARENT_RUN_ID: parent} if parent else {}
    try:
        connected = client(uri)
        found = connected.get_experiment_by_name(experiment)
        place = _artifacts(uri)
        experiment_id = (
            found.experiment_id if found else connected.create_experiment(experiment, artifact_location=place)
        )
        if place is not None and found is not None and found.artifact_location != place:
            log.warning(
                "MLflow stores the artifacts of the experiment '%s' in %s, because its database was made there, and "
                "not in %s; set tracking.experiment to a new name to store them beside the database",
                experiment, found.artifact_location, place,
            )  # fmt: skip
        if found is None or _KIND not in found.tags:
            connected.set_experiment_tag(experiment_id, _KIND, "custom_model_development")
        run_id: str = connected.create_run(experiment_id, tags={**tags, **nested}, run_name=name).info.run_id
    except (MlflowException, OSError) as error:
        raise ConfigurationError(
            f"parameter 'tracking.uri': MLflow cannot open {mask(uri)} ({mask(str(error))}). Start the server, correct "
            "the address, or set tracking.enabled to false."
        ) from None
    params = [Param(key, mask(str(value))[:_LONGEST_VALUE]) for key, value in parameters.items()]
    for start in range(0, len(params), _BATCH):
        connected.log_batch(run_id, params=params[start : start + _BATCH])
    return run_id


def log_metrics(
    uri: str, run_id: str, values: Mapping[str, Any], *, step: int = 0, first: Collection[str] = ()
) -> None:
    """Log the finite numbers among the values of `metrics.json`, those of `first` in the first group of names."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    numbers = {
        names.of_evaluation(key, first=first): float(value)
        for key, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
    client(uri).log_batch(run_id, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])


def annotate(uri: str, run_id: str, tags: Mapping[str, str], *, name: str | None = None) -> None:
    """Set tags of a run, without absolute paths, and its name if one is given."""
    from mlflow.entities import RunTag

    connected = client(uri)
    if tags:
        found = [RunTag(key, without_paths(value)[:_LONGEST_VALUE]) for key, value in tags.items()]
        connected.log_batch(run_id, tags=found)
    if name is not None:
        connected.update_run(run_id, name=name)


def log_datasets(uri: str, run_id: str, digests: Mapping[str, str], *, context: str, profile: str = "") -> None:
    """Log datasets by name with their digests as inputs of a run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(name, digest[:_LONGEST_DIGEST], "local", json.dumps({"uri": name}), profile=profile or None),
            [InputTag("mlflow.data.context", context)],
        )
        for name, digest in digests.items()
    ]
    client(uri).log_inputs(run_id, inputs)


def count_runs(uri: str, run_id: str, tags: Mapping[str, str]) -> int:
    """Count the other runs of the same experiment that have these tags."""
    connected = client(uri)
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    found = connected.search_runs([connected.get_run(run_id).info.experiment_id], wanted)
    return sum(run.info.run_id != run_id for run in found)


def log_text(uri: str, run_id: str, text: str, *, file: str) -> None:
    """Log `text` as the artifact `file` of the run."""
    client(uri).log_text(run_id, text, file)


def close_run(uri: str, run_id: str, *, status: str, reason: str | None = None) -> None:
    """End a run as FINISHED, FAILED or KILLED; `reason` becomes the tag `reason`."""
    connected = client(uri)
    if reason:
        connected.set_tag(run_id, "reason", without_paths(reason)[:_LONGEST_VALUE])
    connected.set_terminated(run_id, status=status)


def _artifacts(uri: str) -> str | None:
    """Return the artifact folder beside a sqlite database (not in the working directory); None for a server."""
    if not uri.startswith(_SQLITE):
        return None
    return (Path(uri.removeprefix(_SQLITE)).parent / "mlartifacts").as_uri()


def log_lines(uri: str, run_id: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Log the metric lines of a training log (`{"step": …, name: number, …}`), a thousand numbers per request.

    The last event becomes the tag `last_event`, and the last sentence that the model showed the tag `preview`.
    """
    from mlflow.entities import Metric

    connected = client(uri)
    now = int(time.time() * 1000)
    metrics = [
        Metric(names.of_training(key), float(value), now, int(line["step"]))
        for line in lines
        if "event" not in line
        for key, value in line.items()
        if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    ]
    for start in range(0, len(metrics), 1000):
        connected.log_batch(run_id, metrics=metrics[start : start + 1000])
    for line in lines:
        if line.get("event") == "preview":
            shown = " → ".join(text for text in (line.get("original"), line["text"]) if text is not None)
            connected.set_tag(run_id, "preview", without_paths(shown)[:_LONGEST_VALUE])
        elif "event" in line and line["event"] not in ("start", "checkpoint", "estimate"):
            connected.set_tag(run_id, "last_event", without_paths(str(dict(line)))[:_LONGEST_VALUE])


class MlflowSink:
    """Sends the lines of a log to an MLflow run: metrics in few requests, events as tags.

    Lines that the store did not accept are kept and sent again after `PAUSE` seconds and at the end, so that a server
    that was away for a while misses none.
    """

    PAUSE = 60.0
    KEPT = 100_000

    def __init__(self, uri: str, run_id: str) -> None:
        self._uri, self._run_id = uri, run_id
        self._waiting: list[Mapping[str, Any]] = []
        self._resting_until = -math.inf

    def take(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._waiting = [*self._waiting, *lines][-self.KEPT :]
        if self._waiting and time.monotonic() >= self._resting_until:
            self._send()

    def close(self) -> None:
        if self._waiting and not self._send():
            log.warning("MLflow lacks the last %d lines of the log, which has them all", len(self._waiting))

    def _send(self) -> bool:
        try:
            log_lines(self._uri, self._run_id, self._waiting)
        except Exception as error:  # requests, SQLAlchemy and MLflow have classes of their own
            if self._resting_until == -math.inf:
                log.warning("MLflow does not answer (%s); the run goes on, and its log is sent later", reason_of(error))
            self._resting_until = time.monotonic() + self.PAUSE
            return False
        self._waiting, self._resting_until = [], -math.inf
        return True


def read_metrics(uri: str, run_id: str) -> dict[str, float]:
    """Return the last metrics of a run by their keys; empty for a run that the store does not contain."""
    from mlflow.exceptions import MlflowException

    try:
        return {names.key_of(name): value for name, value in client(uri).get_run(run_id).data.metrics.items()}
    except MlflowException:
        return {}
