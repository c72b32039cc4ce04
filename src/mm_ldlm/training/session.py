"""One session of a run, seen from the process that launches it: start the workers, watch the log, name the result."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

from mm_ldlm.checkpoints import folder
from mm_ldlm.distributed.environment import host_name
from mm_ldlm.distributed.launch import launch, with_environment
from mm_ldlm.errors import TrainingDiverged, WorkerFailed
from mm_ldlm.store import atomic
from mm_ldlm.tracking.live import Follower, MlflowSink, ProgressSink
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.status import LOG, read_status, sole_writer, taken

log = logging.getLogger(__name__)
SPEC = "training_spec.json"
_DIVERGED = "training diverged at step"


def run_session(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train until the run is finished, or find that it is; return its reference.

    Raises:
        WorkerFailed: a rank failed, or the run was stopped before its end.
        TrainingDiverged: the guard gave up.
    """
    typed = TrainingSpec.from_dict(spec)
    directory = runs / typed.name
    config = with_environment(typed.training.launch)
    if config.nodes > 1 and config.job is None:
        config = dataclasses.replace(config, job=typed.name)  # the hosts of one run must agree on it
    logs = runs / "logs" / typed.name / host_name()
    if read_status(directory)["status"] == "finished" and typed.training.resume != "never":
        log.info("run %s is finished already: nothing to train", typed.name)
        return reference(typed, runs)
    if config.nodes == 1:  # of several hosts another one's worker may hold it rightly
        with sole_writer(runs, typed.name) as free:
            if not free:
                raise WorkerFailed(taken(runs, typed.name))
    file = runs / SPEC
    atomic.write_json(file, spec)
    sinks: list[Any] = [ProgressSink(typed.training.max_steps)]
    uri, run_id = typed.tracking.get("tracking_uri"), typed.tracking.get("run_id")
    if uri and run_id:
        sinks.append(MlflowSink(uri, run_id))
    log.info(
        "training %s: %d steps, %d × %d processes; log in %s",
        typed.name, typed.training.max_steps, config.nodes, config.processes, directory / LOG,
    )  # fmt: skip
    try:
        with Follower(directory / LOG, sinks):
            launch(
                "mm_ldlm.training.worker", [str(file), "--root", str(runs)], config=config,
                log_directory=logs,
            )  # fmt: skip
    except KeyboardInterrupt:
        log.warning(
            "training of %s was interrupted at step %d of %d; its checkpoint is written. The same command continues "
            "from there.",
            typed.name, read_status(directory)["step"], typed.training.max_steps,
        )  # fmt: skip
        raise
    except WorkerFailed as error:
        if _DIVERGED in str(error):
            raise TrainingDiverged(str(error)) from None
        raise
    status = read_status(directory)
    if status["status"] != "finished":
        raise WorkerFailed(
            f"training of {typed.name} was stopped at step {status['step']} of {typed.training.max_steps}; its "
            "checkpoint is written. The same command continues from there."
        )
    shutil.rmtree(logs, ignore_errors=True)
    return reference(typed, runs)


def reference(spec: TrainingSpec, runs: Path) -> dict[str, Any]:
    """What the catalog keeps of a run. `name` is its folder among the runs; `path` is for people to read."""
    directory = runs / spec.name
    status = read_status(directory)
    checkpoint = folder.find(directory)
    return {
        "name": spec.name,
        "path": _readable(directory),
        "fingerprint": spec.fingerprint,
        "step": status["step"],
        "checkpoint": checkpoint.name,
        "metrics": status.get("metrics", {}),
    }


def _readable(path: Path) -> str:
    """Relative to the project that it lies in (the nearest folder above with a pyproject.toml), else as it is."""
    for parent in path.resolve().parents:
        if (parent / "pyproject.toml").is_file():
            return path.resolve().relative_to(parent).as_posix()
    return path.as_posix()
