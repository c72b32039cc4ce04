"""The checkpoint folder: the files and a marker with their checksums, renamed to the final name when complete.

checkpoints/step-00000500/{model,ema,optimizer}.safetensors, training_state.json, …, COMPLETE
checkpoints/latest, best     text files with the name of a folder
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mm_ldlm.core.errors import CheckpointError, UnsafePathError
from mm_ldlm.core.files import InputFile, inside, new_directory, write_text
from mm_ldlm.core.messages import show
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.data.store.verified import RECORD
from mm_ldlm.training.checkpoints.reference import MARKER, NAME

FORMAT_VERSION = 2
_READ = (".safetensors", ".json", ".arrow")
"""Endings of the files that are read from a checkpoint; each must be in its marker."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint. The tensors must not change while they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """file name (…​.safetensors) → tensors by name"""
    documents: Mapping[str, Any]
    """file name (….json) → JSON value"""
    folders: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """folder name → folder to copy"""


def name_of(step: int) -> str:
    """Return the folder name of a step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint folder: by its name, or by its marker if it was renamed or copied.

    Raises:
        CheckpointError: it has another name, and its marker is missing or damaged.
    """
    return int(path.name.removeprefix("step-")) if _has_own_name(path) else int(_marker(path)["step"])


def _has_own_name(path: Path) -> bool:
    """Return whether the name is that of a step, and of no other step than the marker, if that can be read."""
    if (match := NAME.fullmatch(path.name)) is None:
        return False
    if path.is_symlink():  # no copy; one that leads out of the folder is refused when it is read
        return True
    try:
        return bool(_marker(path)["step"] == int(match[1]))
    except CheckpointError:  # a damaged checkpoint, which is reported when it is read
        return True


def write(directory: Path, step: int, contents: Contents) -> Path:
    """Write `directory/step-XXXXXXXX`, replacing a folder of that name.

    Raises:
        CheckpointError: The disk is full, or the file system failed otherwise; earlier checkpoints are unchanged.
    """
    path = directory / name_of(step)
    try:
        with new_directory(path) as new:
            for name, tensors in contents.tensors.items():
                save_file({key: value.contiguous() for key, value in tensors.items()}, new / name)
            for name, document in contents.documents.items():
                (new / name).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            for name, folder in contents.folders.items():
                shutil.copytree(folder, new / name, ignore=shutil.ignore_patterns(RECORD))
            files = sorted(file for file in new.rglob("*") if file.is_file())
            marker = {
                "format_version": FORMAT_VERSION,
                "step": step,
                "files": {
                    file.relative_to(new).as_posix(): {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
                    for file in files
                },
            }
            (new / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {path} could not be written: {_reason(error, contents)} Earlier checkpoints are unchanged."
        ) from error
    return path


def _reason(error: Exception, contents: Contents) -> str:
    """Why a checkpoint could not be written, and what to do."""
    if gone := [
        str(folder) for folder in contents.folders.values() if not folder.is_dir() or not any(folder.iterdir())
    ]:
        return (
            f"{', '.join(gone)}, which every checkpoint contains, was deleted or moved during the training. Restore it "
            "(the pipelines that wrote it write the same again), then continue with the same command."
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, None):
        return f"a file was deleted or moved during the training ({error}). Restore it, then continue."
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error}. Correct the permissions of the folder."
    return f"{error}. Free some disk space."


def check(path: Path) -> dict[str, Any]:
    """Check a checkpoint and return its marker.

    Raises:
        CheckpointError: There is no marker, the format differs, or a file is missing, damaged or not in the marker.
    """
    marker = _marker(path)
    for name, promised in marker["files"].items():
        try:
            file = inside(path, name)
        except UnsafePathError as error:
            raise CheckpointError(f"{path}/{MARKER}: {error.detail}. Choose another checkpoint.") from None
        if not file.is_file():
            raise CheckpointError(f"{path}: {name} is missing.")
        if (size := file.stat().st_size) != promised["bytes"]:
            raise CheckpointError(f"{path}: expected {promised['bytes']} bytes in {name}, found {size}.")
        if file_sha256(file) != promised["sha256"]:
            raise CheckpointError(f"{path}: {name} is damaged (its checksum differs).")
    for file in sorted(file for file in path.rglob("*") if file.suffix in _READ):
        if (name := file.relative_to(path).as_posix()) not in marker["files"]:
            raise CheckpointError(
                f"{path}: expected the checksum of {name} in {MARKER}, found none. Remove the file if it was added, or "
                "choose another checkpoint."
            )
    return marker


def _marker(path: Path) -> dict[str, Any]:
    """Read the marker of a checkpoint, whose files have a size and a checksum."""
    marker = document(path, MARKER)
    version = marker.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: expected checkpoint format {FORMAT_VERSION}, found {version!r:.60}. Choose another checkpoint."
        )
    files, step = marker.get("files"), marker.get("step")
    if not isinstance(files, dict) or not files or not all(_is_promise(promised) for promised in files.values()):
        raise CheckpointError(
            f"{path}/{MARKER}: expected the files of the checkpoint with their bytes and sha256, found "
            f"{files!r:.60}. Choose another checkpoint."
        )
    if not _is_count(step):
        raise CheckpointError(f"{path}/{MARKER}: expected a step, found {step!r:.60}. Choose another checkpoint.")
    return dict(marker)


def _is_promise(promised: Any) -> bool:
    return isinstance(promised, dict) and _is_count(promised.get("bytes")) and isinstance(promised.get("sha256"), str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read all tensors of one file to the CPU."""
    try:
        return load_file(path / name)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: expected a file {name}, found none. Choose another checkpoint.") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}/{name}: not readable ({error}). Choose another checkpoint.") from None


def document(path: Path, name: str) -> Any:
    """Read one JSON file of a checkpoint."""
    return InputFile(path / name, remedy="Choose another checkpoint.", error=CheckpointError).json(dict)


def all_in(directory: Path) -> list[Path]:
    """List the complete checkpoints (with a marker) under their own names, oldest first; a copy has another name."""
    found = (path.parent for path in directory.glob(f"step-*/{MARKER}"))
    return sorted(filter(_has_own_name, found), key=step_of)


def newest_whole(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that passes every check, and a message for each newer one that fails."""
    damaged: list[str] = []
    for path in reversed(all_in(directory)):
        try:
            check(_own(directory, path.name))
            return path, damaged
        except CheckpointError as error:
            damaged.append(str(error))
    return None, damaged


def find(path: Path, *, which: str = "latest") -> Path:
    """Find a checkpoint in a checkpoint folder, a run folder, or its `checkpoints` folder, and check all its bytes.

    Args:
        which: `latest`, `best`, or a step number.

    Raises:
        CheckpointError: There is none, or it is damaged; an older one than the latest is used only when named
            explicitly.
    """
    try:
        whole = (path / MARKER).is_file()
    except OSError as error:  # a name that is too long, a loop of links
        raise CheckpointError(f"{show(str(path), 200)} cannot be read ({error.strerror}). Correct the path.") from None
    if whole:
        check(path)
        return path
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if which == "latest":
        found, damaged = newest_whole(directory)
        if found is None:
            why = f" Damaged: {'; '.join(damaged)}" if damaged else ""
            raise CheckpointError(f"{path}: no complete checkpoint here.{why} Train the run, or name another one.")
        if damaged:
            raise CheckpointError(
                f"{'; '.join(damaged)} The newest intact checkpoint is {found.name}: request it by its step "
                f"({step_of(found)}), or remove the damaged ones and continue training from it."
            )
        return found
    found = _best(path, directory) if which == "best" else _of_step(path, directory, which)
    check(found)
    return found


def _best(path: Path, directory: Path) -> Path:
    name = pointer(directory, "best")
    if name is None:
        raise CheckpointError(
            f"{path}: there is no `best` checkpoint. Set training.checkpoint.best_metric, or use `latest`."
        )
    return directory / name


def _of_step(path: Path, directory: Path, which: str) -> Path:
    try:
        found = _own(directory, name_of(int(which)))
    except ValueError:
        raise CheckpointError(
            f"expected latest, best or a step number as checkpoint, found {which!r}. Correct it."
        ) from None
    if not (found / MARKER).is_file() or not _has_own_name(found):
        steps = ", ".join(str(step_of(item)) for item in all_in(directory)) or "none"
        raise CheckpointError(
            f"{path}: no checkpoint of step {int(which)}; there are {steps}. Choose one of these steps."
        )
    return found


def newest_run(path: Path) -> Path:
    """Return `path` itself, or, for a folder of runs, the run that wrote a checkpoint last."""
    if (path / MARKER).is_file() or (path / "checkpoints").is_dir():
        return path
    runs = [marker.parents[2] for marker in sorted(path.glob(f"*/checkpoints/*/{MARKER}"), key=_modified_ns)]
    return runs[-1] if runs else path


def _modified_ns(marker: Path) -> int:
    return marker.stat().st_mtime_ns


def point(directory: Path, pointer: str, path: Path) -> None:
    """Make the pointer (`latest`, `best`) name this checkpoint."""
    write_text(directory / pointer, path.name + "\n")


def pointer(directory: Path, name: str) -> str | None:
    """Return the folder that a pointer names, if both exist.

    Raises:
        CheckpointError: The pointer names a folder elsewhere, or is no readable text file.
    """
    path = directory / name
    if not os.path.lexists(path):
        return None
    target = InputFile(path, remedy="Remove it.", error=CheckpointError).text().strip()
    return target if (_own(directory, target) / MARKER).is_file() else None


def _own(directory: Path, name: str) -> Path:
    """Return the folder `name` of this run; CheckpointError if it leads elsewhere, also through a symbolic link."""
    try:
        path = inside(directory, name)
        if path.parent == directory:
            return path
        fault = f"the name {name!r} contains a folder"
    except UnsafePathError as error:
        fault = error.detail
    raise CheckpointError(
        f"{directory}: expected the name of a checkpoint of this run, but {fault}. Correct or remove the link, or the "
        "file `best` or `latest` that contains the name."
    )


def remove(path: Path) -> None:
    """Remove a checkpoint, its marker first, so that an interrupted removal leaves no checkpoint."""
    (path / MARKER).unlink(missing_ok=True)
    trash = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    os.replace(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def apply_retention(directory: Path, *, last: int, every: int | None) -> list[int]:
    """Remove all but the newest `last` checkpoints, multiples of `every` and the best; return the removed steps."""
    try:
        best = pointer(directory, "best")
    except CheckpointError:  # the pointer names no checkpoint of this run; requesting `best` explains it
        best = None
    removed = []
    for path in all_in(directory)[:-last]:
        step = step_of(path)
        if path.name == best or (every is not None and step % every == 0):
            continue
        remove(path)
        removed.append(step)
    return removed
