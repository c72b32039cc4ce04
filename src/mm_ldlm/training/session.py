"""Run a training session from the launching process: start the workers, and keep the status and lock of the run."""

import dataclasses
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mm_ldlm.core import CheckpointError, ConfigurationError, WorkerFailed
from mm_ldlm.core.files import InputFile, json_document, write_json
from mm_ldlm.core.locks import holder, take
from mm_ldlm.distributed.launch import launch, with_environment
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, LOG, latest
from mm_ldlm.training.spec import TrainingSpec

log = logging.getLogger(__name__)
SPEC = "training_spec.json"
STATUS = "status.json"
LOCK_SECONDS = 20.0
"""Longest time to wait for the lock of a run"""


def run_session(document: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train until the run of a spec (as JSON) is finished, unless it already is; return its reference.

    Raises:
        ConfigurationError: the run is finished, with other parameters.
        WorkerFailed: a rank failed (`error_class` is TrainingDiverged if the guard stopped it), the run was stopped
            before its end, or another session trains it.
    """
    spec = TrainingSpec.from_dict(document)
    directory = runs / spec.name
    before = read_status(directory)
    if is_done(before, spec):
        if before.fingerprint not in ("", spec.fingerprint):
            raise ConfigurationError(
                f"parameter 'training.run_name': expected the parameters that '{spec.name}' was trained with, "
                "found others. Choose another name, or set training.resume to never to train it from the start."
            )
        log.info("run %s is already finished: nothing to train", spec.name)
        return reference(spec, runs)
    config = with_environment(spec.training.launch)
    if config.nodes > 1 and config.job is None:
        config = dataclasses.replace(config, job=spec.name)  # all hosts of a run must use the same name
    log.info(
        "training %s: %s steps, %d × %d processes; log in %s",
        spec.name, f"{spec.training.steps:,}", config.nodes, config.processes, directory / LOG,
    )  # fmt: skip
    logs = runs / "logs" / spec.name / socket.gethostname()
    write_json(logs / SPEC, document)  # restarted workers read it again: a copy that no other session writes to
    try:
        launch(
            "mm_ldlm.training.worker", [str(logs / SPEC), "--root", str(runs)], config=config, log_directory=logs
        )  # fmt: skip
    except (KeyboardInterrupt, SystemExit):
        log.warning("training of %s was interrupted%s", spec.name, _how_to_continue(spec, directory))
        raise
    if read_status(directory).status != "finished":
        raise WorkerFailed(f"training of {spec.name} was stopped{_how_to_continue(spec, directory)}")
    return reference(spec, runs)


def _how_to_continue(spec: TrainingSpec, directory: Path) -> str:
    """Describe the newest checkpoint of an unfinished run and how to continue from it."""
    newest = latest(directory / CHECKPOINTS)
    if newest is None:
        return " before its first checkpoint. The same command starts again from the beginning."
    again = "`training.resume=auto`" if spec.training.resume == "never" else "The same command"
    return f"; its newest checkpoint is {newest.name}, of {spec.training.steps} steps. {again} continues from there."


def reference(spec: TrainingSpec, runs: Path) -> dict[str, Any]:
    """Make the reference of a run for the catalog: name (of its folder), readable path, step and metrics."""
    directory = runs / spec.name
    status, newest = read_status(directory), latest(directory / CHECKPOINTS)
    return {
        "name": spec.name,
        "path": _readable(directory),
        "fingerprint": spec.fingerprint,
        "step": status.step,
        "checkpoint": None if newest is None else newest.name,
        "metrics": status.metrics,
    }


def _readable(path: Path) -> str:
    """Make a path relative to its project (the nearest parent with a pyproject.toml), if there is one."""
    for parent in path.resolve().parents:
        if (parent / "pyproject.toml").is_file():
            return path.resolve().relative_to(parent).as_posix()
    return path.as_posix()


# -- status and lock: small files that other processes can read at any time -----------------------------------------


@json_document
class Status:
    """State of a run: running, finished, stopped (the same command resumes it), failed or absent.

    Attributes:
        metrics: metrics of the newest checkpoint.
        reason: message of the error of a failed run.
        launch: id of the launch that failed with an error that a restart would repeat; "" otherwise.
        seconds: seconds of training of a run that has ended; None: not recorded, and its time limit counts as reached.
        fingerprint: fingerprint of its spec.
    """

    status: str = "absent"
    step: int = 0
    time: float = 0.0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""
    launch: str = ""
    seconds: float | None = None
    fingerprint: str = ""


def write_status(directory: Path, status: str, step: int, **more: Any) -> None:
    write_json(directory / STATUS, dataclasses.asdict(Status(status, step, round(time.time(), 3), **more)))


def read_status(directory: Path) -> Status:
    if not os.path.lexists(directory / STATUS):
        return Status()
    remedy = "Remove it: the run then continues from its newest checkpoint."
    return InputFile(directory / STATUS, error=CheckpointError, remedy=remedy).json(Status)


def is_done(status: Status, spec: TrainingSpec) -> bool:
    """Return whether a run has reached the last step or the time of a spec; a later session may raise both."""
    if status.status != "finished" or spec.training.resume == "never":
        return False
    minutes, seconds = spec.training.max_minutes, status.seconds
    out_of_time = minutes is not None and (seconds is None or seconds >= minutes * 60)
    return out_of_time or status.step >= spec.training.steps


@contextmanager
def sole_writer(root: Path, name: str) -> Iterator[str | None]:
    """Lock run `name` until the block or this process ends; yield the other holder of the lock, or None.

    It waits up to `LOCK_SECONDS`, because the workers of a killed launcher save before they end.
    """
    path, give_up = root / f".{name}.lock", time.monotonic() + LOCK_SECONDS
    while (lock := take(path, "write")) is None and time.monotonic() < give_up:
        time.sleep(0.2)
    with lock or nullcontext():
        yield holder(path) if lock is None else None
