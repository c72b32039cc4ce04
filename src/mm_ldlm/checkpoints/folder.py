"""The checkpoint folder: the files and a marker with their checksums, renamed to the final name when complete.

checkpoints/step-00000500/{model,ema,optimizer}.safetensors, training_state.json, …, COMPLETE
checkpoints/latest, best     text files with the name of a folder
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mm_ldlm.errors import CheckpointError, UnsafePathError
from mm_ldlm.store import atomic
from mm_ldlm.store.fingerprint import file_sha256
from mm_ldlm.store.paths import inside

MARKER = "COMPLETE"
FORMAT_VERSION = 2


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
    """Return the step of a checkpoint folder."""
    return int(path.name.removeprefix("step-"))


def write(directory: Path, step: int, contents: Contents) -> Path:
    """Write `directory/step-XXXXXXXX`, replacing a folder of that name.

    Raises:
        CheckpointError: The disk is full, or the file system failed otherwise; earlier checkpoints are unchanged.
    """
    path = directory / name_of(step)
    try:
        with atomic.new_directory(path) as new:
            for name, tensors in contents.tensors.items():
                save_file({key: value.contiguous() for key, value in tensors.items()}, new / name)
            for name, document in contents.documents.items():
                (new / name).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            for name, folder in contents.folders.items():
                shutil.copytree(folder, new / name)
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
            f"checkpoint {path} could not be written: {error}. Free disk space or correct the permissions; "
            "earlier checkpoints are unchanged."
        ) from error
    return path


def check(path: Path, *, checksums: bool = True) -> dict[str, Any]:
    """Check a checkpoint and return its marker.

    Raises:
        CheckpointError: There is no marker, the format differs, or a file is missing or damaged.
    """
    try:
        marker: dict[str, Any] = atomic.read_json(path / MARKER)
        files = marker["files"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no {MARKER}, so the checkpoint is not complete. Choose another checkpoint."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}/{MARKER}: not readable ({error}). Choose another checkpoint.") from None
    if marker.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: expected checkpoint format {FORMAT_VERSION}, found {marker.get('format_version')!r}. Choose "
            "another checkpoint."
        )
    for name, promised in files.items():
        try:
            file = inside(path, name)
        except UnsafePathError as error:
            raise CheckpointError(f"{path}/{MARKER}: {error.detail}. Choose another checkpoint.") from None
        if not file.is_file():
            raise CheckpointError(f"{path}: {name} is missing.")
        if (size := file.stat().st_size) != promised["bytes"]:
            raise CheckpointError(f"{path}: expected {promised['bytes']} bytes in {name}, found {size}.")
        if checksums and file_sha256(file) != promised["sha256"]:
            raise CheckpointError(f"{path}: {name} is damaged (its checksum differs).")
    return marker


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
    try:
        found = atomic.read_json(path / name)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: expected a file {name}, found none. Choose another checkpoint.") from None
    except ValueError as error:
        raise CheckpointError(f"{path}/{name}: not readable ({error}). Choose another checkpoint.") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}/{name}: expected a mapping, found {found!r:.60}. Choose another checkpoint.")
    return found


def all_in(directory: Path) -> list[Path]:
    """List the complete checkpoints (with a marker), oldest first."""
    return sorted((path.parent for path in directory.glob(f"step-*/{MARKER}")), key=step_of)


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
    """Find a checkpoint in a checkpoint folder, a run folder, or its `checkpoints` folder.

    Args:
        which: `latest`, `best`, or a step number.

    Raises:
        CheckpointError: There is none, or the latest is damaged; an older one is used only when named explicitly.
    """
    if (path / MARKER).is_file():
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
    if which == "best":
        name = pointer(directory, "best")
        if name is None:
            raise CheckpointError(
                f"{path}: there is no `best` checkpoint. Set training.checkpoint.best_metric, or use `latest`."
            )
        return directory / name
    try:
        found = _own(directory, name_of(int(which)))
    except ValueError:
        raise CheckpointError(
            f"expected latest, best or a step number as checkpoint, found {which!r}. Correct it."
        ) from None
    if not (found / MARKER).is_file():
        steps = ", ".join(str(step_of(item)) for item in all_in(directory)) or "none"
        raise CheckpointError(f"{path}: no checkpoint of step {which}; there are {steps}. Choose one of these steps.")
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
    atomic.write_text(directory / pointer, path.name + "\n")


def pointer(directory: Path, name: str) -> str | None:
    """Return the folder that a pointer names, if both exist.

    Raises:
        CheckpointError: The pointer names a folder elsewhere, or is no readable text file.
    """
    try:
        target = (directory / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory / name}: not readable ({error}). Remove it.") from None
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


def size(contents: Contents) -> int:
    """Estimate the bytes of a folder with these contents."""
    tensors_ = sum(t.numel() * t.element_size() for group in contents.tensors.values() for t in group.values())
    folders = sum(f.stat().st_size for folder in contents.folders.values() for f in folder.rglob("*") if f.is_file())
    return tensors_ + folders
