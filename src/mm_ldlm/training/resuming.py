"""Choice of the checkpoint that a session of a run starts from: the newest of the run, one of another run, or an
earlier one of the run, which the run goes back to.

A run that goes back keeps its later checkpoints: they are moved to `checkpoints.old-N` next to `checkpoints`. The
record `went_back.json` names the checkpoint and the fingerprint of the parameters, so that the same command continues
the run instead of going back again at every restart.
"""

import dataclasses
from pathlib import Path
from typing import Any

from mm_ldlm.core import ConfigurationError, nearest, show, to_dict
from mm_ldlm.core.files import recorded, write_json
from mm_ldlm.distributed import collectives
from mm_ldlm.training.checkpointer import Checkpointer
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, all_in, aside, latest, name_of, pointed
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.initial import weights_of
from mm_ldlm.training.spec import TrainingSpec

RECORD = "went_back.json"


@dataclasses.dataclass(frozen=True)
class WentBack:
    """Record of the last time that a run went back."""

    step: int
    fingerprint: str


def refuse_missing_origin(training: TrainingConfig, model: Any, *, runs: Path) -> None:
    """Refuse a `training.resume` or `training.init_from` that names no checkpoint, before the first node of a run.

    Raises:
        ConfigurationError: there is none; the message names the nearest folder.
        CheckpointError: it is not complete, or belongs to another model.
    """
    for key, named in (("resume", training.resume), ("init_from", training.init_from)):
        if named in ("auto", "never", None):
            continue
        path = runs / named
        if (key == "init_from" and weights_of(path, options=to_dict(model))) or (key == "resume" and went_back(path)):
            continue
        if not path.is_dir():
            near = nearest(path.name, sorted(entry.name for entry in path.parent.glob("*")))
            raise ConfigurationError(
                f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at "
                f"{show(named)} (relative to {runs}).{near} Correct the name, or set an absolute path."
            )
        folder.find(path)


def start(checkpointer: Checkpointer, spec: TrainingSpec, root: Path) -> str | None:
    """Restore a checkpoint as the parameters say, and always after a lost rank; return its name, None for none.

    Raises:
        CheckpointError: `training.resume` names no complete checkpoint, or one that does not fit this run.
    """
    resume = spec.training.resume
    if checkpointer.process.rank_info.attempt == 0:
        if resume == "never":
            return None
        if (back := back_to(spec, root)) is not None:
            _go_back(checkpointer, spec, back)
            return back.name
    path = latest(checkpointer.directory)
    if path is None and resume not in ("auto", "never"):
        path = folder.find(root / resume)
    if path is not None:
        checkpointer.restore(path)
    return None if path is None else path.name


def back_to(spec: TrainingSpec, root: Path) -> Path | None:
    """Find the checkpoint of this run that `training.resume` names, if the run has not gone back to it yet.

    None: it names no checkpoint of this run, or this run already continues from there, with the same parameters.

    Raises:
        CheckpointError: this run has no such checkpoint, or it is damaged.
    """
    resume, own = spec.training.resume, root / spec.name / CHECKPOINTS
    if resume in ("auto", "never") or (root / resume).resolve().parent != own.resolve():
        return None
    return None if went_back(root / resume, fingerprint=spec.fingerprint) else folder.find(root / resume)


def went_back(path: Path, *, fingerprint: str | None = None) -> bool:
    """Return whether the run of the checkpoint `path`, which may have been removed since, went back to it last.

    Args:
        fingerprint: count it only if the run went back with the parameters of this fingerprint; None: with any.
    """
    found: WentBack | None = recorded(path.parent / RECORD, WentBack)
    if found is None or name_of(found.step) != path.name:
        return False
    return fingerprint in (None, found.fingerprint)


def _go_back(checkpointer: Checkpointer, spec: TrainingSpec, target: Path) -> None:
    """Restore `target`, move the later checkpoints aside, and record both. A kill at any time loses no checkpoint."""
    directory, state = checkpointer.directory, checkpointer.learner.state
    checkpointer.restore(target)
    kept = [path for path in all_in(directory) if path.name <= target.name]
    newer = all_in(directory)[len(kept) :]
    best = pointed(directory, "best")
    if best in newer:  # the best until the target is the one whose metric its counters contain
        name = checkpointer.config.best_metric
        metrics = {path: folder.document(path, "training_state.json").get("metrics") or {} for path in kept}
        best = next((path for path in kept if state.best is not None and metrics[path].get(name) == state.best), None)
        state.best = None if best is None else state.best
    collectives.barrier()  # every rank has listed the checkpoints
    if checkpointer.process.is_main:
        folder.point(directory, "latest", target)
        if best is not None:
            folder.point(directory, "best", best)
        else:
            (directory / "best").unlink(missing_ok=True)
        kept_in = aside(directory)
        for path in reversed(newer):  # the newest first, so that the rest is always a run
            kept_in.mkdir(exist_ok=True)
            path.rename(kept_in / path.name)
        write_json(directory / RECORD, dataclasses.asdict(WentBack(state.step, spec.fingerprint)))
        moved = ", ".join(path.name for path in newer)
        reason = f"to {target.name}; its later checkpoints ({moved}) are now in {kept_in.name}" if newer else ""
        checkpointer.tracker.event(state.step, "went_back", reason=reason or f"to {target.name}, its newest one")
    collectives.barrier()
