"""Runs that were recorded locally because their store did not answer: they are sent to the store later.

A tag of the local run names the run that it was sent to, so that the same command sends each run once. A run whose
store went away while it ran left only its last part here, which is added to the run that the store has.
"""

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.artifacts import download_artifacts
from mlflow.entities import Run

from mm_ldlm.evaluation.compare import load_result
from mm_ldlm.extras.mlflow.client import CONTINUES, MlflowRun
from mm_ldlm.extras.mlflow.registry import register

BEGUN, SENT = "mm_ldlm.sending_to", "mm_ldlm.sent_to"
"""Tags of a local run: id of the run in the store while it is sent, and when it is complete there"""


def send_runs(local: str, uri: str) -> Iterator[tuple[str, str]]:
    """Send every finished run of the store `local` that was not sent yet; yield its name and its id at `uri`."""
    client = MlflowRun(local, "").client
    names = {each.experiment_id: each.name for each in client.search_experiments()}
    for run in client.search_runs([*names], order_by=["start_time ASC"], max_results=50_000):
        if SENT not in run.data.tags and run.info.status != "RUNNING":
            yield str(run.info.run_name), _send(client, run, names[run.info.experiment_id], uri)


def _send(client: Any, run: Run, experiment: str, uri: str) -> str:
    """Send one run, or continue where an earlier attempt ended; return its id there."""
    local, tags = run.info.run_id, run.data.tags
    target = MlflowRun(uri, tags.get(CONTINUES) or tags.get(BEGUN, ""))
    if not target.run_id:
        target.create(
            experiment=experiment, name=str(run.info.run_name), parameters=run.data.params, parent=None,
            start_time=run.info.start_time,
        )  # fmt: skip
        client.set_tag(local, BEGUN, target.run_id)
    target.tag({key: value for key, value in tags.items() if key not in (BEGUN, CONTINUES, "mlflow.runName")})
    for key in run.data.metrics:
        target.add_points(client.get_metric_history(local, key))
    if run.inputs is not None and run.inputs.dataset_inputs:
        target.client.log_inputs(target.run_id, run.inputs.dataset_inputs)
    named = target.client.get_run(target.run_id).data.params.get("tracking.register")
    with tempfile.TemporaryDirectory() as folder:
        files = Path(client.download_artifacts(local, "", folder) if client.list_artifacts(local) else folder)
        target.client.log_artifacts(target.run_id, str(files))
        for output in run.outputs.model_outputs if run.outputs is not None else ():
            model = client.get_logged_model(output.model_id)
            path = download_artifacts(artifact_uri=model.artifact_location, dst_path=f"{folder}/{model.model_id}")
            decide = functools.partial(register, name=str(named), ours=load_result(str(files)))
            target.add_model(Path(path), model.name, output.step, register=None if named in (None, "None") else decide)
    target.client.set_terminated(target.run_id, status=run.info.status, end_time=run.info.end_time)
    client.set_tag(local, SENT, target.run_id)
    return target.run_id
