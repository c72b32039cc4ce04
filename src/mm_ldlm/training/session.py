"""Session of a run in the launching process: start the workers and return the result."""

from __future__ import annotations

import dataclasses
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import TrainingDiverged, WorkerFailed
from mm_ldlm.core.files import write_json
from mm_ldlm.distributed.environment import host_name
from mm_ldlm.distributed.launch import launch, with_environment
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.resuming import back_to, later
from mm_ldlm.training.spec import TrainingSpec
from mm_ldlm.training.status import LOG, read_status, sole_writer, taken

log = logging.getLogger(__name__)
SPEC = "training_spec.json"


def run_session(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train until the run is finished, unless it already is; return its reference.

    Raises:
        WorkerFailed: a rank failed, the run was stopped before its end, or another session is training it.
        TrainingDiverged: the guard stopped training.
    """
    typed = TrainingSpec.from_dict(spec)
    directory = runs / typed.name
    config = with_environment(typed.training.launch)
    if config.nodes > 1 and config.job is None:
        config = dataclasses.replace(config, job=typed.name)  # all hosts of a run must use the same name
    logs = runs / "logs" / typed.name / host_name()
    back = back_to(typed, runs)
    if read_status(directory)["status"] == "finished" and typed.training.resume != "never" and back is None:
        log.info("run %s is already finished: nothing to train", typed.name)
        return reference(typed, runs)
    _report_origin(typed, runs, back)
    log.info(
        "training %s: %s steps, %d × %d processes; log in %s",
        typed.name, f"{typed.training.steps:,}", config.nodes, config.processes, directory / LOG,
    )  # fmt: skip
    # With several hosts, each has a session of the same run; a single host has one.
    alone = sole_writer(runs, f"{typed.name}.session") if config.nodes == 1 else nullcontext(True)
    try:
        with alone as free:
            if not free:
                raise WorkerFailed(taken(runs, typed.name))
            # Restarted workers read their spec again, so it is a copy that no other session writes to.
            file = logs / SPEC
            logs.mkdir(parents=True, exist_ok=True)
            write_json(file, spec)
            launch(
                "mm_ldlm.training.worker", [str(file), "--root", str(runs)], config=config, log_directory=logs
            )  # fmt: skip
    except (KeyboardInterrupt, SystemExit):
        log.warning("training of %s was interrupted%s", typed.name, _how_to_continue(typed, directory))
        raise
    except WorkerFailed as error:
        if error.caused_by(TrainingDiverged):
            raise TrainingDiverged(str(error)) from None
        raise
    status = read_status(directory)
    if status["status"] != "finished":
        raise WorkerFailed(f"training of {typed.name} was stopped{_how_to_continue(typed, directory)}")
    return reference(typed, runs)


def _report_origin(spec: TrainingSpec, runs: Path, back: Path | None) -> None:
    """Log that the run goes back to an earlier checkpoint, or that `resume` is not read because it has newer ones."""
    resume, own = spec.training.resume, folder.all_in(runs / spec.name / "checkpoints")
    if back is not None:
        moved = ", ".join(path.name for path in later(back)) or "none"
        log.warning(
            "run %s goes back to %s; its later checkpoints (%s) are moved to a folder checkpoints.old-N beside the "
            "others", spec.name, back.name, moved,
        )  # fmt: skip
    elif resume not in ("auto", "never") and own:
        log.info("run %s continues from its own %s; training.resume named its origin", spec.name, own[-1].name)


def _how_to_continue(spec: TrainingSpec, directory: Path) -> str:
    """Describe the newest checkpoint of an unfinished run and how to continue from it."""
    checkpoints = folder.all_in(directory / "checkpoints")
    if not checkpoints:
        return " before its first checkpoint. The same command starts again from the beginning."
    again = "`training.resume: auto` continues" if spec.training.resume == "never" else "The same command continues"
    return f"; its newest checkpoint is {checkpoints[-1].name} of {spec.training.steps} steps. {again} from there."


def reference(spec: TrainingSpec, runs: Path) -> dict[str, Any]:
    """Make the reference of a run for the catalog: name (of its folder), readable path, step and metrics."""
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
    """Make a path relative to its project (the nearest parent with a pyproject.toml), if there is one."""
    for parent in path.resolve().parents:
        if (parent / "pyproject.toml").is_file():
            return path.resolve().relative_to(parent).as_posix()
    return path.as_posix()
