"""Files of texts and of vectors, and folders of runs, for requests.

This module imports no torch, so that the command line refuses a wrong path at once.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core import CheckpointError, SamplingError, show
from mm_ldlm.core.files import InputFile
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, MARKER

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""Suffixes of files whose lines are not texts"""


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
            f"{shown}: no such run folder. Give the folder of a run, or the one that contains all runs."
        )
    path = Path(path)
    if (path / MARKER).is_file() or (path / CHECKPOINTS).is_dir():
        return path
    places = ("*", "06_models/runs/*", "*/06_models/runs/*", "*/*/06_models/runs/*")
    names = [f"{place}/{CHECKPOINTS}/{name}" for place in places for name in ("latest", "step-*")]
    written = [(each.lstat().st_mtime_ns, each) for name in names for each in path.glob(name)]
    newest, *others = dict.fromkeys(each.parents[1] for _, each in sorted(written, reverse=True)) or [path]
    if others:
        count, shown = len(others) + 1, ", ".join(map(str, others[:3]))
        log.warning("run %s is the newest of %d in %s; give another by its folder: %s", newest, count, path, shown)
    return newest
