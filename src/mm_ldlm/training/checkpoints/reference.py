"""Names in the folder of a run, and the run that samples and scores are made of: named by data/06_models/run.json, or
chosen by its path (`--params run=PATH`). Separate from `folder`, so that it does not need torch.
"""

import glob
import hashlib
import itertools
import os
import re
from pathlib import Path
from typing import Any

from mm_ldlm.core import CheckpointError, UnsafePathError, nearest, show
from mm_ldlm.core.files import InputFile, inside

NAME = re.compile(r"step-(\d{8,18})")
"""Name of the folder of a checkpoint; a copy may have another one."""
MARKER = "COMPLETE"
"""File of a checkpoint that is written last and names its other files."""
CHECKPOINTS, CONFIG, LOG = "checkpoints", "config.json", "training_log.jsonl"
"""Folder of the checkpoints, and files of the configuration and of the log, in the folder of a run."""
EVALUATION = "evaluation"
"""Folder of the result of its evaluation, in the folder of a run."""
OTHER_RUNS = "other_runs"
"""Folder, below the results, of the results of runs that were chosen by their path."""
CHOSEN = "chosen"
"""Key of the reference of a run that was chosen by its path: the name of its checkpoint, or None for the
parameters' checkpoint."""


def name_of(step: int) -> str:
    """Return the folder name of a step."""
    return f"step-{step:08d}"


def aside(path: Path) -> Path:
    """Return the first free name NAME.old-1, NAME.old-2 … next to a folder."""
    names = (path.with_name(f"{path.name}.old-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def all_in(directory: Path) -> list[Path]:
    """List the folders with the name of a checkpoint, oldest first, whether they are complete or not."""
    return sorted((path for path in directory.glob("step-*") if NAME.fullmatch(path.name)), key=_step)


def pointed(directory: Path, pointer: str) -> Path | None:
    """Return the checkpoint that a pointer (`latest`, `best`) names, which need not exist; None without a pointer."""
    file = directory / pointer
    if not os.path.lexists(file):
        return None
    door = InputFile(file, error=CheckpointError, remedy="Write the name of a checkpoint there, or remove the file.")
    name = door.text().strip()
    if not NAME.fullmatch(name):
        door.refuse("the name of a checkpoint", show(name, 60))
    return directory / name


def latest(directory: Path) -> Path | None:
    """Return the newest checkpoint that is named here, by its folder or by the pointer `latest`; None if there is none.

    It may be incomplete, damaged or missing: an older one is never taken in its place.
    """
    named = pointed(directory, "latest")
    return max([*all_in(directory), *([named] if named else [])], key=_step, default=None)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


# -- the run of run.json -----------------------------------------------------------------------------------------------


def run_folder(runs: Path, reference: Any) -> Path:
    """Return the folder of the run that a run.json names.

    Raises:
        CheckpointError: it names no run, or one outside `runs`.
    """
    name = reference.get("name") if isinstance(reference, dict) else None
    try:
        found = inside(runs, name)
    except UnsafePathError:
        found = Path()
    if found.parent != Path(runs):
        raise CheckpointError(
            f"expected the name of a folder in {runs} in run.json, found {name!r}. Run `kedro run "
            "--pipelines=training`."
        )
    return found


def weights_folder(runs: Path, reference: Any) -> Path:
    """Return the folder to load a model from: the run, or the checkpoint that was chosen by its path.

    Raises:
        CheckpointError: the reference names no run, or a checkpoint that is newer than all that the run has.
        UnsafePathError: it names a checkpoint outside of its run.
    """
    folder = run_folder(runs, reference)
    chosen = reference.get(CHOSEN)
    named = str(chosen or reference.get("checkpoint"))
    path = inside(folder / CHECKPOINTS, named)
    if chosen is not None:
        return path
    newest = latest(folder / CHECKPOINTS)
    if NAME.fullmatch(named) and (newest is None or _step(newest) < _step(path)):
        raise CheckpointError(
            f"{folder}: expected the checkpoint {named}, which run.json names, or a newer one, found "
            f"{'none' if newest is None else newest.name}. Restore it, train again (`kedro run --pipelines=training`), "
            f"or choose an older one by its path (`--params run={folder}/checkpoints/NAME`)."
        )
    return folder


# -- a run that is chosen by its path ----------------------------------------------------------------------------------


def split_path(path: str | Path) -> tuple[Path, str | None]:
    """Split the path of a run or of one of its checkpoints into the folder of the run and the checkpoint's name."""
    found = Path(os.path.abspath(path))
    if found.parent.name == CHECKPOINTS:
        return found.parents[1], found.name
    return (found.parent if found.name == CHECKPOINTS else found), None


def results_of(results: str, path: Any) -> str:
    """Return the folder of samples, metrics and report: `results` for the run of that folder (`path` is None), and for
    a run that is chosen by its path a separate folder below them, so that both keep their results.
    """
    if not isinstance(path, str) or not path:
        return results
    folder, checkpoint = split_path(path)
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]  # runs of one name in several folders
    return f"{results}/{OTHER_RUNS}/{'-'.join(part for part in (folder.name, checkpoint, digest) if part)}"


def runs_of(runs: str, path: Any) -> str:
    """Return the folder that contains the run: `runs` if none is chosen by its path."""
    return str(split_path(path)[0].parent) if isinstance(path, str) and path else runs


def chosen_run(path: str) -> dict[str, Any]:
    """Make the reference of a run that is chosen by its path, or by the path of one of its checkpoints.

    Raises:
        CheckpointError: there is no run, or no such complete checkpoint; the message names the nearest ones.
    """
    folder, checkpoint = split_path(path)
    where = f"parameter 'run': expected the folder of a run or of one of its checkpoints, found {show(path)}"
    if not os.path.isfile(folder / CONFIG):  # methods of Path raise for a name that is too long
        places = (glob.escape(str(place)) for place in (folder.parent, folder))
        near = [os.path.dirname(config) for place in places for config in glob.glob(f"{place}/*/{CONFIG}")]
        hint = nearest(str(folder), near) or " Correct the path."
        raise CheckpointError(f"{where}, where {folder} has no {CONFIG}.{hint}")
    complete = sorted(marker.parent.name for marker in folder.glob(f"{CHECKPOINTS}/*/{MARKER}"))
    found = latest(folder / CHECKPOINTS) if checkpoint is None else folder / CHECKPOINTS / checkpoint
    if found is None or found.name not in complete:
        name = "no checkpoint" if found is None else f"an incomplete checkpoint ({found.name})"
        raise CheckpointError(f"{where}, which has {name}. Complete ones: {', '.join(complete) or 'none'}.")
    step = {"step": _step(found)} if NAME.fullmatch(found.name) else {}
    return {"name": folder.name, "path": path, **step, "checkpoint": found.name, "metrics": {}, CHOSEN: checkpoint}


def config_of(*folders: Path) -> dict[str, Any]:
    """Read the config.json of a run, in the first of these folders that has one.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    places = [folder / CONFIG for folder in folders]
    place = next((each for each in places if each.is_file()), places[0])
    file = InputFile(place, error=CheckpointError, remedy="Restore it, or choose another run.")
    found: dict[str, Any] = file.json(dict)
    if not {"model", "objective", "shape"} <= found.keys():
        file.refuse("the model, the objective and the shape of a run", show(found, 80))
    return found
