"""Files of texts and of vectors, folders of runs, and the models of the package, for requests.

This module imports no torch, so that the command line refuses a wrong path at once.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core import CheckpointError, SamplingError, nearest, show
from mm_ldlm.core.files import InputFile
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, CONFIG, MARKER

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""Suffixes of files whose lines are not texts"""
PRETRAINED = Path(__file__).parents[1] / "pretrained"
"""Folder of the models that the package contains: a link to the one of the project, whose content a wheel has"""
DEFAULT = "minilm-english"
"""The model of the package that is used where no run is named and `RUNS` has none"""
RUNS = "data"
"""Folder of data and runs in the working directory"""


def read_texts(path: str | Path, *, name: str = "") -> list[str]:
    """Read the lines of a UTF-8 text file, so that text i is line i + 1.

    Args:
        name: what a refusal calls the file; "" stands for its path.

    Raises:
        SamplingError: the file is not UTF-8 text, is a table, whose lines are not texts, or has a blank line.
    """
    file = InputFile(path, remedy="Give a UTF-8 file with one text per line.", error=SamplingError, name=name)
    if file.check().suffix.lower() in TABLES:
        file.refuse("one text per line", f"a table ({Path(path).suffix})")
    texts = [line.strip() for line in file.lines()]
    if blank := [number for number, text in enumerate(texts, 1) if not text]:
        shown = ", ".join(map(str, blank[:5])) + (", …" if len(blank) > 5 else "")
        file.refuse("a text in each line", f"{len(blank)} blank of {len(texts)} lines ({shown})")
    return texts


def read_array(path: str | Path, *, name: str = "") -> npt.NDArray[Any]:
    """Map the array of a `.npy` file into memory; pickled objects are never loaded."""
    remedy = "Give a .npy file of vectors, a plain array that numpy.save wrote."
    return InputFile(path, remedy=remedy, error=SamplingError, name=name).array()


def run_of(name: str | None) -> Path:
    """Return the run that a command line names: a model of the package by its name, or what `newest_run` finds.

    Without a name it is the newest run in `RUNS`, or else the model `DEFAULT`, which a warning names.

    Raises:
        CheckpointError: there is none.
    """
    if name is not None:
        return pretrained(name) or newest_run(name)
    here = newest_run(RUNS) if os.path.isdir(RUNS) else None
    default = None if here is not None and _is_run(here) else pretrained(DEFAULT)
    if default is None:
        return here or newest_run(RUNS)
    log.warning("no run in the folder %s: using the model %s", RUNS, DEFAULT)
    return default


def pretrained(name: Any) -> Path | None:
    """Return the folder of a model of the package, or None if it has none of that name.

    A name means the same model in every working directory. A folder there is named by a path, such as ./NAME.
    """
    if not isinstance(name, str) or name not in pretrained_names():
        return None
    if os.path.isdir(name) and not os.path.samefile(name, PRETRAINED / name):
        log.warning("%s is the model of the package; give the folder of that name as ./%s", name, name)
    return PRETRAINED / name


def pretrained_names() -> list[str]:
    """List the names of the models that the package contains."""
    return sorted(each.parent.name for each in PRETRAINED.glob(f"*/{CONFIG}"))


def newest_run(path: Any) -> Path:
    """Return the path of a run, or the newest run below a folder of runs or of data: the one that was written last.

    A warning names the run that was chosen among several. Whether its checkpoint is complete is not judged here: an
    older run is never taken in its place.

    Raises:
        CheckpointError: there is no such folder.
    """
    if not (isinstance(path, (str, Path)) and os.path.isdir(path)):
        # not of the Path, in which the credentials of an address are not recognised
        shown = show(str(path) if isinstance(path, Path) else path)
        raise CheckpointError(
            f"{shown}: no such run folder.{nearest(path, pretrained_names())} Give the folder of a run, one that "
            f"contains runs, or the name of a model of the package ({', '.join(pretrained_names())})."
        )
    path = Path(path)
    if _is_run(path):
        return path
    places = ("*", "runs/*", "06_models/runs/*", "*/06_models/runs/*", "*/*/06_models/runs/*")
    names = [f"{place}/{CHECKPOINTS}/{name}" for place in places for name in ("latest", "step-*")]
    written = sorted(((_written(each), each) for name in names for each in path.glob(name)), reverse=True)
    newest, *others = dict.fromkeys(each.parents[1] for _, each in written) or [path]
    if others:
        count, shown = len(others) + 1, ", ".join(map(str, others[:3]))
        log.warning("run %s is the newest of %d in %s; give another by its folder: %s", newest, count, path, shown)
    return newest


def _written(entry: Path) -> int:
    try:
        return entry.lstat().st_mtime_ns
    except FileNotFoundError:  # an old checkpoint, which a running training has removed
        return 0


def _is_run(path: Path) -> bool:
    return (path / MARKER).is_file() or (path / CHECKPOINTS).is_dir()
