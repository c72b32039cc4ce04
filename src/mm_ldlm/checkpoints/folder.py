"""One checkpoint folder: files, then a marker with their checksums, then the rename to the final name.

checkpoints/step-00000500/{model,ema,optimizer}.safetensors, training_state.json, …, COMPLETE
checkpoints/latest, best     text files that hold a folder's name
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

from mm_ldlm.errors import CheckpointError
from mm_ldlm.store import atomic
from mm_ldlm.store.fingerprint import file_sha256

MARKER = "COMPLETE"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Contents:
    """What goes into a folder. The tensors must not change while they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """file name (…​.safetensors) → tensors by name"""
    documents: Mapping[str, Any]
    """file name (….json) → JSON value"""
    folders: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """folder name → folder to copy"""


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def write(directory: Path, step: int, contents: Contents) -> Path:
    """Write `directory/step-XXXXXXXX`; a folder of that name is replaced.

    Raises:
        CheckpointError: no room, or another fault of the file system; what was there before is untouched.
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
            f"checkpoint {path} could not be written: {error}. Free some space or correct the permissions; the "
            "checkpoints before it are untouched."
        ) from error
    return path


def check(path: Path, *, checksums: bool = True) -> dict[str, Any]:
    """The marker of a whole checkpoint.

    Raises:
        CheckpointError: no marker, another format, a file missing, short, or of another checksum.
    """
    try:
        marker: dict[str, Any] = json.loads((path / MARKER).read_text(encoding="utf-8"))
        files = marker["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no {MARKER}, so this is not a finished checkpoint.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}/{MARKER}: not readable ({error}).") from None
    if marker.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: checkpoint format {marker.get('format_version')!r}, this program reads {FORMAT_VERSION}."
        )
    for name, promised in files.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"{path}: {name} is missing.")
        if (size := file.stat().st_size) != promised["bytes"]:
            raise CheckpointError(f"{path}: {name} has {size} bytes of {promised['bytes']}.")
        if checksums and file_sha256(file) != promised["sha256"]:
            raise CheckpointError(f"{path}: {name} is damaged (its checksum differs).")
    return marker


def tensors(path: Path, name: str) -> dict[str, Tensor]:
    """All tensors of one file, on the CPU."""
    try:
        return load_file(path / name)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no {name}.") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}/{name}: not readable ({error}).") from None


def document(path: Path, name: str) -> Any:
    try:
        return json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no {name}.") from None
    except ValueError as error:
        raise CheckpointError(f"{path}/{name}: not readable ({error}).") from None


def all_in(directory: Path) -> list[Path]:
    """Finished checkpoints (with a marker), oldest first."""
    return sorted((path.parent for path in directory.glob(f"step-*/{MARKER}")), key=step_of)


def newest_whole(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that passes every check, and a line about each newer one that does not."""
    damaged: list[str] = []
    for path in reversed(all_in(directory)):
        try:
            check(path)
            return path, damaged
        except CheckpointError as error:
            damaged.append(str(error))
    return None, damaged


def find(path: Path, *, which: str = "latest") -> Path:
    """A checkpoint from a checkpoint folder, a run folder, or its `checkpoints` folder.

    Args:
        which: `latest`, `best`, or a step number.

    Raises:
        CheckpointError: there is none, or the latest is damaged: an older one is taken only when it is asked for.
    """
    if (path / MARKER).is_file():
        return path
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if which == "latest":
        found, damaged = newest_whole(directory)
        if found is None:
            why = f" Damaged: {'; '.join(damaged)}" if damaged else ""
            raise CheckpointError(f"{path}: no finished checkpoint here.{why} Train the run, or name another one.")
        if damaged:
            raise CheckpointError(
                f"{'; '.join(damaged)} The newest whole checkpoint is {found.name}: ask for it by its step "
                f"({step_of(found)}), or remove what is damaged and train on from there."
            )
        return found
    if which == "best":
        name = pointer(directory, "best")
        if name is None:
            raise CheckpointError(
                f"{path}: no `best` checkpoint: set training.checkpoint.best_metric, or use `latest`."
            )
        return directory / name
    try:
        found = directory / name_of(int(which))
    except ValueError:
        raise CheckpointError(f"checkpoint {which!r}: expected latest, best or a step number.") from None
    if not (found / MARKER).is_file():
        steps = ", ".join(str(step_of(item)) for item in all_in(directory)) or "none"
        raise CheckpointError(f"{path}: no checkpoint of step {which}; there are {steps}.")
    return found


def newest_run(path: Path) -> Path:
    """`path` itself, or, where it is a folder of run folders, the run among them that wrote a checkpoint last."""
    if (path / MARKER).is_file() or (path / "checkpoints").is_dir():
        return path
    runs = [marker.parents[2] for marker in sorted(path.glob(f"*/checkpoints/*/{MARKER}"), key=_written)]
    return runs[-1] if runs else path


def _written(marker: Path) -> int:
    return marker.stat().st_mtime_ns


def point(directory: Path, pointer: str, path: Path) -> None:
    atomic.write_text(directory / pointer, path.name + "\n")


def pointer(directory: Path, name: str) -> str | None:
    """The folder that a pointer names, if both are there."""
    try:
        target = (directory / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    return target if (directory / target / MARKER).is_file() else None


def remove(path: Path) -> None:
    """Marker first: what is left by a kill in between is no checkpoint any more."""
    (path / MARKER).unlink(missing_ok=True)
    trash = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    os.replace(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def keep(directory: Path, *, last: int, every: int | None) -> list[int]:
    """Remove all but the newest `last`, those whose step is a multiple of `every`, and the best; the removed steps."""
    best = pointer(directory, "best")
    removed = []
    for path in all_in(directory)[:-last]:
        step = step_of(path)
        if path.name == best or (every is not None and step % every == 0):
            continue
        remove(path)
        removed.append(step)
    return removed


def size(contents: Contents) -> int:
    """Bytes that a folder of these contents takes, about."""
    tensors_ = sum(t.numel() * t.element_size() for group in contents.tensors.values() for t in group.values())
    folders = sum(f.stat().st_size for folder in contents.folders.values() for f in folder.rglob("*") if f.is_file())
    return tensors_ + folders


__all__ = [
    "MARKER", "Contents", "all_in", "check", "document", "find", "keep", "name_of", "newest_whole", "point", "pointer",
    "remove", "size", "step_of", "tensors", "write",
]  # fmt: skip
