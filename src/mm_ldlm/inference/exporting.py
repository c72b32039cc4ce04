"""Exported runs: one flat folder with everything that a loaded run needs, which `MMLDLM.from_pretrained` reads.

The folder is a checkpoint together with its config.json: safetensors, JSON and the tokenizer, and a marker with the
size and the digest of each file, which are compared when it is loaded.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_ldlm.core import CheckpointError, ConfigurationError, reason_of, show, to_dict
from mm_ldlm.core.files import InputFile, is_taken
from mm_ldlm.core.registry import is_import_path
from mm_ldlm.data.encoders.base import parse_encoder
from mm_ldlm.inference.calibration import CALIBRATION
from mm_ldlm.inference.files import newest_run, pretrained, pretrained_names
from mm_ldlm.inference.loading import calibration_of, run_config
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CONFIG, split_path

_PUBLISHED = ("name", "seed", "model", "objective", "shape", "fingerprints", "versions")
"""Keys of a config.json that are exported; the others describe a machine and its folders."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Parts of a run that are exported."""

    run: Path
    """The folder of the run, or the checkpoint that was named instead of it"""
    checkpoint: Path
    config: dict[str, Any]
    """The config.json, with the shape as a `DataShape`"""
    tensors: dict[str, Tensor]
    averaged: bool
    """Whether the weights are the averaged ones (EMA)"""

    @property
    def folder(self) -> Path:
        """The folder of the run"""
        return split_path(self.checkpoint)[0]

    @property
    def folders(self) -> dict[str, Path]:
        """Folders of the checkpoint by name: tokenizer, normalisers and stores of the objective"""
        return {part.name: part for part in sorted(self.checkpoint.iterdir()) if part.is_dir()}


def source_of(
    run: Path, target: Path, *, checkpoint: str = "latest", use_ema: bool = True, dtype: str | None = None
) -> Source:
    """Read the weights of a run that are to be exported to the folder `target`.

    Args:
        run: folder of a run, of one of its checkpoints, or of runs (the newest one).
        target: a new folder.
        use_ema: the averaged weights, if the run has them.
        dtype: data type of the matrices, which a model that loads them converts to float32 again; None keeps theirs.

    Raises:
        CheckpointError: there is no such run or checkpoint, or the folder exists.
    """
    refuse_existing(target)
    run = newest_run(run)
    found = folder.find(run, which=checkpoint)
    averaged = use_ema and (found / "ema.safetensors").is_file()
    tensors = folder.tensors(found, "ema.safetensors" if averaged else "model.safetensors")
    if dtype is not None:  # vectors, such as gains, are few
        shortened = {name: each for name, each in tensors.items() if each.is_floating_point() and each.dim() > 1}
        tensors |= {name: each.to(getattr(torch, dtype)) for name, each in shortened.items()}
    return Source(run, found, run_config(run, found), tensors, averaged)


def refuse_existing(target: Path) -> None:
    """Raise CheckpointError if a folder that is to be written has files, or is the working directory."""
    if is_taken(target) or not target.name:
        raise CheckpointError(
            f"{target}: expected a new folder, found one with files or the working directory. Choose another name."
        )


def export(
    source: Source,
    target: Path,
    *,
    folders: Mapping[str, Path] | None = None,
    documents: Mapping[str, Any] | None = None,
) -> None:
    """Write an exported run to the new folder `target`.

    Args:
        folders: further folders to copy, by name. The one named `ENCODER` has the weights of the encoder.
        documents: further JSON files, by name.
    """
    config = {key: source.config[key] for key in _PUBLISHED if key in source.config}
    encoder = parse_encoder(source.config["encoder"]).portable() if source.config.get("encoder") else {}
    config |= {"shape": to_dict(config["shape"]), "encoder": encoder}
    identity = folder.document(source.checkpoint, "training_state.json").get("identity")
    calibration = calibration_of(source.checkpoint, use_ema=source.averaged)
    further = {**({} if calibration is None else {CALIBRATION: to_dict(calibration)}), **(documents or {})}
    folder.write(
        target.parent,
        folder.step_of(source.checkpoint),
        tensors={"model.safetensors": source.tensors},
        documents={CONFIG: config, "training_state.json": {"identity": identity}, **further},
        folders={**source.folders, **(folders or {})},
        called=target.name,
    )


def pretrained_folder(name: str | Path, *, revision: str | None = None) -> Path:
    """Return the folder of an exported run: of this package, of this machine, or a snapshot of a repository on the hub.

    Args:
        name: a model of the package, a folder, or owner/name of the hub. The first is looked for first, so that a name
            loads the same weights in every working directory; a path such as ./NAME is a folder.
        revision: branch, tag or commit on the hub; None is the newest state.

    Raises:
        CheckpointError: there is no such folder, and no such repository in the cache or on the hub; or see `_trusted`.
    """
    if (shipped := pretrained(name)) is not None or os.path.isdir(name):
        return _trusted(shipped or Path(name))
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = Path(snapshot_download(str(name), revision=revision))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise CheckpointError(
            f"{show(str(name))}: expected a model of this package ({', '.join(pretrained_names()) or 'it has none'}), "
            "the folder of an exported run, or owner/name of one on the hub or in its cache, found none "
            f"({reason_of(error, 200)}). Correct the name, check the network, or log in (`hf auth login`) where the "
            "repository is private."
        ) from None
    return _trusted(found)


def _trusted(path: Path) -> Path:
    """Return the folder of an exported run whose config.json imports no other code and sends no text to an address.

    Raises:
        CheckpointError: a `kind` is an import path, or the encoder has keys that no export writes.
    """
    file = InputFile(path / CONFIG, remedy="Load it by MMLDLM.from_run if you trust its author.", error=CheckpointError)
    config, found = dataclasses.replace(file, remedy=folder.AGAIN).json(dict), list[Any]()
    json.loads(file.text(), object_hook=lambda value: found.extend(value.values()))
    if paths := [each for each in map(str, found) if is_import_path(each) and not each.startswith("mm_ldlm.")]:
        file.refuse("kinds of this installation", f"the import paths {show(paths)}")
    encoder = config.get("encoder")
    with contextlib.suppress(ConfigurationError):  # it cannot be loaded, and texts need another one
        if encoder and not parse_encoder(encoder).portable().keys() >= encoder.keys():
            file.refuse("an encoder without path, address and device", show(encoder))
    return path
