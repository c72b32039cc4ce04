"""The model registry: the alias "best" belongs to the version with the better evaluation."""

import contextlib
import tempfile

from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from mm_ldlm.core import EvaluationError
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.compare import Result, load_result, paired_differences
from mm_ldlm.extras.mlflow.client import MlflowRun
from mm_ldlm.training.checkpoints.reference import EVALUATION

ALIAS = "best"
_COSTS = ("nats",)
"""Beginnings of the statistics of which the lower value is better"""


def register(run: MlflowRun, model: LoggedModel, *, name: str, ours: Result) -> str:
    """Register a logged model as a version of `name`, with the alias if it is better; return what was decided.

    The evaluation of the version that has the alias is the folder `evaluation` among the artifacts of its run.
    """
    client, best, better, reason = run.client, None, True, "no version had it"
    with contextlib.suppress(MlflowException):  # there is no such name yet, or no version with the alias
        best = client.get_model_version_by_alias(name, ALIAS)
    if best is not None:
        with tempfile.TemporaryDirectory() as folder:
            theirs = load_result(client.download_artifacts(str(best.run_id), EVALUATION, folder))
        better, words = is_better(theirs, ours)
        reason = f"compared with version {best.version}: {words}"
    with contextlib.suppress(MlflowException):  # it exists
        client.create_registered_model(name)
    # A store in a file would look the id up at MLflow's global address.
    source = model.model_uri if run.uri.startswith("http") else model.artifact_location
    made = client.create_model_version(name, source, run_id=run.run_id, model_id=model.model_id)
    client.set_model_version_tag(name, made.version, "comparison", reason)
    if better:
        client.set_registered_model_alias(name, ALIAS, made.version)
    return f"version {made.version} of {name} {'has' if better else 'does not get'} the alias {ALIAS} ({reason})"


def is_better(theirs: Result, ours: Result) -> tuple[bool, str]:
    """Return whether some paired difference is significant and all such are in our favour, and the reason."""
    try:
        found = paired_differences([theirs], [ours], Bootstrap())
    except EvaluationError as error:
        return False, str(error)
    differences = {metric: each for part in found.values() for metric, each in part["differences"].items()}
    signs = {
        metric: (each["b"] > each["a"]) != metric.startswith(_COSTS)
        for metric, each in differences.items()
        if each["verdict"] == "significant"
    }
    words = ", ".join(f"{metric} {'better' if sign else 'worse'}" for metric, sign in signs.items())
    return bool(signs) and all(signs.values()), words or "no difference is significant"
