"""Loading of a run folder, which contains everything but the encoder.

If the run has latents, the encoder that its configuration names is loaded when it is first needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import CheckpointError, ConfigurationError, FingerprintError, SamplingError
from mm_ldlm.core.files import InputFile
from mm_ldlm.core.messages import nearest, show
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders.base import load_encoder, no_encoder
from mm_ldlm.data.encoders.registry import parse_encoder
from mm_ldlm.data.features import feature_of
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import ShardStore
from mm_ldlm.inference.inputs import check_flag, check_integer, check_path
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.default_dtype import float32_by_default
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import BuildsOnModel
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.identity import identity_of, refuse_other
from mm_ldlm.training.checkpoints.weights import load_parameters

ELSEWHERE = " Give the folder of a run, or the one that contains all runs."
"""Ends the refusal of a folder that does not exist if no other beside it has a similar name"""


@dataclass(frozen=True)
class Parts:
    """Components that `MMLDLM` is built from."""

    model: GenerativeModel
    capabilities: Capabilities
    tokenizer: TextTokenizer
    normaliser: Normaliser | None
    """None for a run without latents"""
    normalisers: dict[str, Normaliser]
    """The normalisers of other data by the names of their folders in the checkpoint, such as "image_normaliser\""""
    load_encoder: Callable[[], Any] | None
    """Loads the encoder that the run was trained on; None if the run names no encoder that embeds texts"""
    no_encoder: str | None
    """Why there is none, for a run whose latents were given"""
    checkpoint: Path
    step: int
    fingerprints: dict[str, str]
    """Fingerprints of the inputs of the run, by name"""


@float32_by_default()
def load_run(
    path: str | Path,
    *,
    checkpoint: str | int = "latest",
    use_ema: bool = True,
    device: str | torch.device | None = None,
) -> Parts:
    """Load a run from its folder, from one of its checkpoints, or from a folder of runs (the newest one).

    Raises:
        CheckpointError: the folder, its config.json or a complete checkpoint is missing or damaged, or the weights do
            not fit the model that config.json describes.
    """
    given, path, use_ema = path, check_path(path), check_flag(use_ema, name="use_ema")
    if not isinstance(checkpoint, str):
        checkpoint = check_integer(checkpoint, name="checkpoint", minimum=0)
    chosen = _device(device)
    try:
        exists = path.is_dir()
    except OSError:  # a name that is too long
        exists = False
    if not exists:
        # not of the Path, in which the credentials of an address are not recognised
        raise CheckpointError(f"{show(str(given))}: no such run folder.{_nearest_folder(path) or ELSEWHERE}")
    path = folder.newest_run(path)
    found = folder.find(path, which=str(checkpoint).removeprefix("step-"))
    config = run_config(path, found)
    tokenizer = TextTokenizer.load(found / "tokenizer")
    fingerprints = {str(name): str(value) for name, value in config["fingerprints"].items()}
    model_config, objective_config = kinds_of(config)
    refuse_other(
        identity_of(model=model_config, shape=config["shape"], objective=objective_config, fingerprints=fingerprints),
        folder.document(found, "training_state.json").get("identity"),
        found,
        remedy="Restore the config.json that the run was trained with, or choose another checkpoint.",
    )
    root = build_root(config, found)
    weights = "ema.safetensors" if use_ema and (found / "ema.safetensors").is_file() else "model.safetensors"
    load_parameters(root, folder.tensors(found, weights), found / weights)
    try:
        root = root.to(chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise _refused_device(chosen, str(error).splitlines()[0]) from None
    root.eval().requires_grad_(False)
    return Parts(
        model=root.objective.generative_model(root.model),
        capabilities=objective_config.capabilities(model_config),
        tokenizer=tokenizer,
        normaliser=_normaliser(found / "normaliser"),
        normalisers={each.name: Normaliser.load(each) for each in sorted(found.glob("*_normaliser"))},
        load_encoder=_encoder_loader(config.get("encoder") or {}, fingerprints.get("encoder", ""), chosen),
        no_encoder=_no_encoder(config.get("encoder") or {}),
        checkpoint=found,
        step=folder.step_of(found),
        fingerprints=fingerprints,
    )


def kinds_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the configurations of the model and of the objective of a config.json.

    Raises:
        ConfigurationError: one of them is of an unknown kind, or has unknown keys.
    """
    model = parse_kind(MODELS, config["model"], at="model")
    return model, parse_kind(OBJECTIVES, config["objective"], at="objective")


def build_root(config: Mapping[str, Any], stores: Path) -> TrainableRoot:
    """Build the model and the objective of a config.json on the CPU, before their weights are loaded.

    Args:
        config: what `run_config` returns.
        stores: folder with the stores that the objective is made from.
    """
    model_config, objective_config = kinds_of(config)
    own = {
        name: torch.from_numpy(feature_of(name).values(ShardStore.open(stores / name)))
        for name in objective_config.stores
    }
    objective = objective_config.build(config["shape"], **own)
    model = model_config.build(config["shape"], generator=torch.Generator().manual_seed(0))
    if isinstance(objective, BuildsOnModel):
        objective.attach(model)
    return TrainableRoot(model, objective)


def refuse_other_data(parts: Parts | None, fingerprints: Mapping[str, str]) -> None:
    """Refuse a run whose vocabulary, encoder or classes differ from those of the data that it is to be used on.

    Args:
        parts: of the run; None for a model that was built in memory, which is not checked.
        fingerprints: of the dataset, by the name of the store.

    Raises:
        FingerprintError: they differ, so that ids, latents or labels of the data would mean something else to the run.
    """
    names = {"tokenizer": "vocabulary", "encoder": "encoder", "label_names": "classes"}
    ours = {} if parts is None else parts.fingerprints
    for name, what in names.items():
        if name in ours and name in fingerprints and ours[name] != fingerprints[name]:
            assert parts is not None
            raise FingerprintError(
                f"{parts.checkpoint}: expected a run with the {what} of the dataset ({fingerprints[name]:.12}), found "
                f"one with another {what} ({ours[name]:.12}). Name the environment or the data folder that the run was "
                "trained on (`--env=NAME`, `--params data=FOLDER`), or choose a run of this dataset."
            )


def _nearest_folder(path: Path) -> str:
    """Return a hint at the folder beside a path whose name is most like its own."""
    try:
        beside = (each.name for each in path.parent.iterdir() if each.is_dir())
        return nearest(path.name, sorted(islice(beside, 1000)))
    except (OSError, ValueError):
        return ""


def _device(device: Any) -> torch.device:
    """Return the device of a request; None is the first GPU if there is one, otherwise the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(device, (str, torch.device)):
        raise _refused_device(device, "expected a name")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise _refused_device(device, str(error).splitlines()[0]) from None
    if chosen.type == "meta":
        raise _refused_device(device, "its tensors have no values")
    return chosen


def _refused_device(device: Any, reason: str) -> SamplingError:
    name = str(device) if isinstance(device, torch.device) else device
    return SamplingError(
        f"device {show(name, 60)} cannot be used on this machine ({reason}). Choose cpu, cuda or cuda:N, or "
        "None for the default."
    )


def _normaliser(folder: Path) -> Normaliser | None:
    return Normaliser.load(folder) if folder.is_dir() else None


def run_config(path: Path, checkpoint: Path) -> dict[str, Any]:
    """Read the config.json of a run, with its shape as a DataShape.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    for place in (path, *checkpoint.parents[:2]):
        if (place / "config.json").is_file():
            return _read_config(place / "config.json")
    raise CheckpointError(f"{path}: expected a run folder with config.json, found none. Give the path of a run folder.")


def _read_config(path: Path) -> dict[str, Any]:
    """Read config.json, with its shape as a DataShape."""
    config = InputFile(path, remedy="Restore it, or choose another run.", error=CheckpointError).json(dict)
    if missing := sorted({"model", "objective", "shape"} - set(config)):
        raise CheckpointError(f"{path}: {', '.join(missing)} missing. Give the path of a run folder.")
    config = {"fingerprints": {}, **config}
    names = [field.name for field in dataclasses.fields(DataShape)]
    for key in ("shape", "fingerprints"):
        if not isinstance(config[key], dict):
            raise CheckpointError(
                f"{path}: expected a mapping under '{key}', found {config[key]!r:.60}. Restore it, or choose "
                "another run."
            )
    sizes = config["shape"]
    optional = {field.name for field in dataclasses.fields(DataShape) if field.default is None}
    whole = all(
        isinstance(value, int) or (key in optional and (value is None or isinstance(value, list)))
        for key, value in sizes.items()
    )
    try:
        shape = DataShape(**sizes) if whole else None
    except TypeError:
        shape = None
    if shape is None:
        raise CheckpointError(
            f"{path}: expected the numbers {', '.join(names)} under 'shape', found {sizes!r:.200}. Restore it, or "
            "choose another run."
        )
    return {**config, "shape": shape}


def _no_encoder(config: dict[str, Any]) -> str | None:
    """Explain why a run whose latents were given cannot embed texts; None for other runs."""
    try:
        return no_encoder(parse_encoder(config)) if config else None
    except ConfigurationError:  # of an encoder that this installation lacks; loading it raises the error
        return None


def _encoder_loader(config: dict[str, Any], expected: str, device: Any) -> Callable[[], Any] | None:
    if not config or _no_encoder(config) is not None:
        return None

    def load() -> Any:
        encoder = load_encoder(parse_encoder(config), device=str(device), expected=expected or None)
        if expected and encoder.fingerprint != expected:
            raise FingerprintError(
                f"expected the encoder with fingerprint {expected}, which made the latents of the run; found encoder "
                f"'{config.get('name')}' with {encoder.fingerprint}, so its weights or settings differ. "
                "Pass the original one as encoder=load_encoder(...)."
            )
        return encoder

    return load
