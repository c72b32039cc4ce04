"""Choice of the checkpoint that a session of a run starts from: the newest of the run, one of another run, or an
earlier one of the run, which the run goes back to.

A run that goes back keeps its later checkpoints: they are moved to `checkpoints.old-N` beside `checkpoints`. The record
`went_back.json` names the checkpoint and the fingerprint of the parameters, so that the same command continues the run
instead of going back again at every restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mm_ldlm.core.errors import CheckpointError
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.distributed import collectives
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import CheckpointConfig
from mm_ldlm.training.loop import Run
from mm_ldlm.training.spec import TrainingSpec

RECORD = "went_back.json"


def start(parts: Run, spec: TrainingSpec, root: Path) -> str | None:
    """Restore a checkpoint as the parameters say, and always after a lost rank; return its name, None for none.

    Raises:
        CheckpointError: `training.resume` names no complete checkpoint, or one that does not fit this run.
    """
    resume, restarted = spec.training.resume, parts.process.rank_info.attempt > 0
    if resume == "never" and not restarted:
        return None
    if not restarted and (back := back_to(spec, root)) is not None:
        _go_back(parts, spec, back)
        return back.name
    path = parts.checkpointer.newest()
    if path is None and resume not in ("auto", "never"):
        try:
            path = folder.find(root / resume)
        except CheckpointError as error:
            raise CheckpointError(f"parameter 'training.resume': {error}") from None
    if path is None:
        return None
    parts.checkpointer.restore(path)
    return path.name


def back_to(spec: TrainingSpec, root: Path) -> Path | None:
    """Find the checkpoint of this run that `training.resume` names, if the run has not gone back to it yet.

    None: it names no checkpoint of this run, or this run already continues from there, with the same parameters.

    Raises:
        CheckpointError: this run has no such checkpoint, or it is damaged.
    """
    resume, own = spec.training.resume, root / spec.name / "checkpoints"
    if resume in ("auto", "never") or (root / resume).resolve().parent != own.resolve():
        return None
    return None if went_back(root / resume, fingerprint=spec.fingerprint) else named(root / resume)


def named(path: Path) -> Path:
    """Return the checkpoint at `path`, complete and undamaged.

    Raises:
        CheckpointError: there is none; the message lists the steps that the run has.
    """
    try:
        return folder.find(path.parent, which=path.name.removeprefix("step-"))
    except CheckpointError as error:
        raise CheckpointError(f"parameter 'training.resume': {error}") from None


def went_back(path: Path, *, fingerprint: str | None = None) -> bool:
    """Return whether the run of the checkpoint `path`, which may have been removed since, went back to it last.

    Args:
        fingerprint: count it only if the run went back with the parameters of this fingerprint; None: with any.
    """
    found = _record(path.parent)
    if found is None or folder.name_of(found["step"]) != path.name:
        return False
    return fingerprint in (None, found["fingerprint"])


def later(checkpoint: Path) -> list[Path]:
    """List the complete checkpoints of the same run that are newer."""
    return [path for path in folder.all_in(checkpoint.parent) if folder.step_of(path) > folder.step_of(checkpoint)]


def _go_back(parts: Run, spec: TrainingSpec, target: Path) -> None:
    """Restore `target`, move the later checkpoints aside, and record both. A kill at any time loses no checkpoint."""
    directory, state = parts.checkpointer.directory, parts.state
    parts.checkpointer.restore(target)
    newer = later(target)
    best = folder.pointer(directory, "best")
    if best in [path.name for path in newer]:
        best, state.best = _best(directory, spec.training.checkpoint, upto=state.step)
    collectives.barrier()  # every rank has listed the checkpoints
    if parts.process.is_main:
        aside = _move_aside(directory, newer) if newer else None
        folder.point(directory, "latest", target)
        if best is not None:
            folder.point(directory, "best", directory / best)
        else:
            (directory / "best").unlink(missing_ok=True)
        write_json(directory / RECORD, {"step": state.step, "fingerprint": spec.fingerprint})
        moved = {"moved": [path.name for path in newer], "to": aside.name} if aside else {}
        parts.tracker.event(state.step, "went_back", **moved)
    collectives.barrier()


def _best(directory: Path, config: CheckpointConfig, *, upto: int) -> tuple[str | None, float | None]:
    """Find name and value of the best checkpoint up to a step, by the metrics that the checkpoints contain."""
    found: list[tuple[float, str]] = []
    for path in folder.all_in(directory):
        metrics = folder.document(path, "training_state.json").get("metrics") or {}
        if folder.step_of(path) <= upto and config.best_metric in metrics:
            found.append((metrics[config.best_metric], path.name))
    if not found:
        return None, None
    value, name = (min if config.best_is == "min" else max)(found, key=lambda item: item[0])
    return name, value


def _move_aside(directory: Path, paths: list[Path]) -> Path:
    """Move checkpoints to a new folder beside the others, the newest first, so that the rest is always a run."""
    numbers = (n for n in range(1, 10_000) if not directory.with_name(f"{directory.name}.old-{n}").exists())
    aside = directory.with_name(f"{directory.name}.old-{next(numbers)}")
    aside.mkdir()
    for path in reversed(paths):
        path.rename(aside / path.name)
    return aside


def _record(directory: Path) -> dict[str, Any] | None:
    """Read the record; None if there is none, or if it is not readable: the run then goes back once more."""
    found: dict[str, Any] | None = recorded(directory / RECORD)
    return found if found and isinstance(found.get("step"), int) and "fingerprint" in found else None
