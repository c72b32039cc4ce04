"""The checkpoint folder: the files and a marker with their checksums, renamed to the final name when complete.

checkpoints/step-00000500/{model,ema,optimizer}.safetensors, training_state.json, …, COMPLETE
checkpoints/latest, best     text files with the name of a folder
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mm_ldlm.core import CheckpointError, UnsafePathError, foreign_code
from mm_ldlm.core.files import InputFile, inside, json_document, new_directory, temporary_of, write_text
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.data.store.manifest import VERIFIED
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, CONFIG, MARKER, NAME, all_in, latest, name_of, pointed

FORMAT_VERSION = 2
_READ = (".safetensors", ".json", ".arrow")
"""Endings of the files that are read from a checkpoint; each must be in its marker."""
_BESIDE, _TOOLS = (MARKER, "README.md", ".gitattributes"), (".git", ".cache")
"""Files and folders of an exported run that its marker does not name: the card, and what git and downloads add"""
_OTHER = "Restore it, or name another checkpoint: an older one is used only if it is named."
AGAIN = "Export the run again, or download it again."
"""Remedy for a damaged folder of an exported run"""


@json_document
class File:
    """Size and checksum of a file, as the marker states them."""

    bytes: int
    sha256: str


@json_document
class Marker:
    """The last file of a checkpoint."""

    format_version: int
    step: int
    files: dict[str, File]


# -- writing -----------------------------------------------------------------------------------------------------------


def write(
    directory: Path, step: int, *, tensors: Mapping[str, Mapping[str, Tensor]], documents: Mapping[str, Any],
    folders: Mapping[str, Path], called: str | None = None,
) -> Path:  # fmt: skip
    """Write `directory/step-XXXXXXXX`, replacing a folder of that name, and make `latest` name it.

    Args:
        tensors: file name (….safetensors) → tensors by name, which must not change while they are written.
        documents: file name (….json) → JSON value.
        folders: folder name → folder to copy.
        called: another name for the folder; `latest` then stays unchanged.

    Raises:
        CheckpointError: the disk is full, or the file system failed otherwise; earlier checkpoints are unchanged.
    """
    path = directory / (called or name_of(step))
    with foreign_code(lambda reason: CheckpointError(
        f"checkpoint {path} could not be written: {reason}. Earlier checkpoints are unchanged."
    ), OSError, SafetensorError):  # fmt: skip
        with new_directory(path) as new:
            for name, held in tensors.items():
                save_file({key: value.contiguous() for key, value in held.items()}, new / name)
            for name, document in documents.items():
                (new / name).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            for name, folder in folders.items():
                shutil.copytree(folder, new / name, ignore=shutil.ignore_patterns(VERIFIED))
            files = {file.relative_to(new).as_posix(): file for file in sorted(new.rglob("*")) if file.is_file()}
            listed = {name: File(file.stat().st_size, file_sha256(file)) for name, file in files.items()}
            marker = dataclasses.asdict(Marker(FORMAT_VERSION, step, listed))
            (new / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
            for file in files.values():  # safetensors makes files that only their owner can read
                shutil.copymode(new / MARKER, file)
        if called is None:
            point(directory, "latest", path)
    return path


def point(directory: Path, pointer: str, path: Path) -> None:
    """Make the pointer (`latest`, `best`) name this checkpoint."""
    write_text(directory / pointer, path.name + "\n")


def apply_retention(directory: Path, *, last: int, every: int | None) -> None:
    """Remove all but the newest `last` checkpoints, multiples of `every` and the best."""
    best = pointed(directory, "best")
    for path in all_in(directory)[:-last]:
        if path != best and (every is None or int(path.name.removeprefix("step-")) % every):
            remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint, which has another name first, so that an interrupted removal leaves no checkpoint."""
    trash = temporary_of(path)
    os.replace(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


# -- reading -----------------------------------------------------------------------------------------------------------


def check(path: Path) -> Marker:
    """Compare a checkpoint with its marker, and return the marker.

    Raises:
        CheckpointError: there is no marker, it belongs to another step or format, or a file is missing, damaged or not
            in the marker.
    """
    marker = _marker(path)
    exported = CONFIG in marker.files
    door = InputFile(path, error=CheckpointError, remedy=AGAIN if exported else _OTHER)
    if (named := NAME.fullmatch(path.name)) and int(named[1]) != marker.step:
        door.refuse(f"step {int(named[1])}", f"step {marker.step} in {MARKER}")
    for name, promised in marker.files.items():
        file = _file(path, name)
        size = file.stat().st_size if file.is_file() else None
        if size != promised.bytes or file_sha256(file) != promised.sha256:
            found = "none" if size is None else f"{size} bytes" if size != promised.bytes else "other content"
            door.refuse(f"the file {name} of {promised.bytes} bytes", f"{found}: it is damaged")
    for file in path.rglob("*"):
        inner = file.relative_to(path)
        if exported:
            beside = str(inner) in _BESIDE and (not file.is_symlink() or path.parent.name == "snapshots")
            known = beside or inner.parts[0] in _TOOLS or inner.name == VERIFIED
            read = not known and (file.is_symlink() or not file.is_dir())
        else:
            read = file.suffix in _READ
        if read and inner.as_posix() not in marker.files:
            dataclasses.replace(door, remedy=f"Remove it. {AGAIN if exported else ''}".strip()).refuse(
                f"only the files that {MARKER} lists", f"{inner}, which was added later"
            )
    return marker


def _file(path: Path, name: str) -> Path:
    """Return a file that the marker names; the snapshots of the hub's cache are links to `blobs` next to them.

    Raises:
        UnsafePathError: it is not in the folder.
    """
    if path.parent.name == "snapshots":
        return inside(path.parents[1], f"snapshots/{path.name}/{name}")
    return inside(path, name)


def is_exported(path: Path) -> bool:
    """Return whether a folder is an exported run, complete or not: it has a config.json and no checkpoints."""
    return os.path.exists(path / CONFIG) and not os.path.exists(path / CHECKPOINTS)


def _remedy(path: Path) -> str:
    return AGAIN if is_exported(path) else _OTHER


def _marker(path: Path) -> Marker:
    door = InputFile(path / MARKER, error=CheckpointError, remedy=_remedy(path), name=f"{path}/{MARKER}")
    marker: Marker = door.json(Marker)
    if marker.format_version != FORMAT_VERSION or not marker.files:
        door.refuse(f"files in format {FORMAT_VERSION}", f"{len(marker.files)} in format {marker.format_version}")
    return marker


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, also of a copy under another name."""
    return _marker(path).step


def tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read all tensors of one file to the CPU."""
    door = InputFile(path / name, error=CheckpointError, remedy=_remedy(path))
    with door.parsing("tensors", SafetensorError, OSError):
        return load_file(door.check())


def document(path: Path, name: str) -> dict[str, Any]:
    """Read one JSON file of a checkpoint: a mapping, in which all numbers are finite."""
    door = InputFile(path / name, error=CheckpointError, remedy=_remedy(path))
    found: dict[str, Any] = door.json(dict)
    if not all(math.isfinite(leaf) for leaf in tree_leaves(found) if isinstance(leaf, float)):
        door.refuse("finite numbers", "NaN or infinity")
    return found


def find(path: Path, *, which: str | int = "latest") -> Path:
    """Find a checkpoint in a checkpoint folder, a run folder, or its `checkpoints` folder, and check all its bytes.

    Args:
        which: `latest`, `best`, a step number, or the name of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged; an older one than the latest is used only when named
            explicitly.
    """
    if NAME.fullmatch(path.name) or os.path.isfile(path / MARKER) or is_exported(path):
        check(path)
        return path
    which = str(which).removeprefix("step-")
    directory = path / CHECKPOINTS if os.path.isdir(path / CHECKPOINTS) else path
    found = latest(directory) if which == "latest" else pointed(directory, which) if which == "best" else None
    if which.isdecimal():
        found = directory / name_of(int(which))
    steps = ", ".join(each.name for each in all_in(directory)) or "none"
    if found is None:
        raise CheckpointError(
            f"{path}: expected a checkpoint ({which}), found {steps}. "
            + (
                "The run was trained without training.checkpoint.best_metric, as trials are. Use `--checkpoint latest`,"
                " or in a pipeline `--params sampling.checkpoint=latest,evaluation.checkpoint=latest`."
                if which == "best" and steps != "none"
                else "Choose latest, best or one that was found; if none was, name the folder of a trained run."
            )
        )
    try:
        inside(directory, found.name)
        check(found)
    except (CheckpointError, UnsafePathError) as error:
        raise CheckpointError(f"{error} Checkpoints here: {steps}.") from None
    return found
