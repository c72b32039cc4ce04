"""Loading of a run folder, which contains everything but the encoder.

If the run has latents, the encoder that its configuration names is loaded when it is first needed.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from mm_ldlm.core import (
    CheckpointError,
    ConfigurationError,
    FingerprintError,
    MMLDLMError,
    NonNegativeInt,
    Precision,
    Registry,
    bounded,
    check,
    parse,
    parse_kind,
    show,
)
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.encoders.base import load_encoder, no_encoder, parse_encoder
from mm_ldlm.data.features import feature_of
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.data.store import ShardStore
from mm_ldlm.distributed.device import working_device
from mm_ldlm.inference.calibration import CALIBRATION, Calibration
from mm_ldlm.inference.files import newest_run
from mm_ldlm.inference.precision import resolved
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.models.defaults import plain_defaults
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.objectives.root import TrainableRoot, build_root
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.provenance import weights_of
from mm_ldlm.training.checkpoints.reference import EVALUATION, config_of, split_path
from mm_ldlm.training.checkpoints.weights import (
    identity_of,
    load_tensors,
    persistent_buffers,
    refuse_non_finite,
    refuse_other,
    saved_tensors,
)

ENCODER = "encoder"
"""Folder of an exported run with the weights of its encoder"""
CHECKPOINT_FOLDERS = Registry("folder of an exported run", {}, group="checkpoint_folders")
"""Name of a folder → a function of `Parts` and of this folder, which returns the parts as the folder changes them"""


@dataclass(frozen=True)
class Parts:
    """Components that `MMLDLM` is built from."""

    model: GenerativeModel
    """The trained model with the conventions of its objective, on its device"""
    capabilities: Capabilities
    tokenizer: TextTokenizer
    normalisers: Mapping[str, Any] = field(default_factory=dict)
    """Normalisers of the fields, by the names of their folders in a checkpoint; "normaliser" belongs to the latents"""
    load_encoder: Callable[[], Any] | None = None
    """Loads the encoder that made the latents; None if the run names no encoder that embeds texts"""
    encoder: str = ""
    """Name of that encoder"""
    load_own: Callable[[], Any] | None = None
    """Loads the encoder of the training, which re-embeds texts if another encoder made the latents"""
    no_encoder: str = "this model was built without one."
    """Why there is none, for messages"""
    checkpoint: Path | None = None
    """None for a model that was not loaded"""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Provenance of its weights (`checkpoints.provenance.weights_of`); empty for a model that was not loaded"""
    precision: Precision = "fp32"
    """In which it samples: fp32 or bf16"""
    step: int = 0
    dataset: Path | None = None
    """Folder of the dataset that the run was trained on, which may have been removed"""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of the inputs of the run, by name"""
    calibration: Calibration | None = None
    """Probabilities that its inverted texts are right"""


@plain_defaults()
def load_run(
    path: str | Path,
    *,
    checkpoint: str | int = "latest",
    use_ema: bool = True,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
) -> Parts:
    """Load a run from its folder, from one of its checkpoints, or from a folder of runs (the newest one).

    Raises:
        CheckpointError: the folder, its config.json or a complete checkpoint is missing or damaged, or the weights are
            not finite or do not fit the model that config.json describes.
    """
    use_ema, chosen = check(use_ema, bool, name="use_ema"), working_device(device)
    precision = resolved(check(precision, Precision, name="precision"), chosen)
    which = check(checkpoint, Annotated[str, bounded(min_length=1)] | NonNegativeInt, name="checkpoint")
    run = newest_run(path)
    found = folder.find(run, which=which)
    config = run_config(run, found)
    model_config, objective_config = kinds_of(config)
    fingerprints = config["fingerprints"]
    refuse_other(
        identity_of(model=model_config, shape=config["shape"], objective=objective_config, fingerprints=fingerprints),
        folder.document(found, "training_state.json").get("identity"),
        found,
        remedy="Restore the config.json that the run was trained with, or choose another checkpoint.",
    )
    root = root_of(config, found)
    weights = weights_of(found, use_ema=use_ema)
    file = found / ("ema.safetensors" if weights["weights"] == "averaged" else "model.safetensors")
    tensors = folder.tensors(found, file.name)
    refuse_non_finite(
        tensors, file, or_infinite=persistent_buffers(root), remedy="Restore the file, or choose another checkpoint."
    )
    load_tensors(saved_tensors(root), tensors, file)
    root = root.to(chosen).eval().requires_grad_(False)
    encoder = (config.get("encoder") or {}) | ({"path": str(found / ENCODER)} if (found / ENCODER).is_dir() else {})
    load, no_encoder = _encoder_of(encoder, fingerprints.get("encoder", ""), chosen)
    normalisers: dict[str, Any] = {each.name: Normaliser.load(each) for each in sorted(found.glob("*normaliser"))}
    parts = Parts(
        model=root.objective.generative_model(root.model),
        capabilities=objective_config.capabilities(model_config),
        tokenizer=TextTokenizer.load(found / "tokenizer"),
        normalisers=normalisers,
        load_encoder=load,
        encoder=str(encoder.get("name", "")),
        no_encoder=no_encoder,
        checkpoint=found,
        weights=weights,
        precision=precision,
        step=folder.step_of(found),
        dataset=Path(os.path.normpath(run.parent / str(config["dataset"]))) if "dataset" in config else None,
        fingerprints=fingerprints,
        calibration=calibration_of(found, use_ema=use_ema),
    )
    for name in CHECKPOINT_FOLDERS:
        if (found / name).is_dir():
            parts = CHECKPOINT_FOLDERS.load(name)(parts, found / name)
    return parts


def calibration_of(checkpoint: Path, *, use_ema: bool) -> Calibration | None:
    """Read the calibration of the weights of a checkpoint, or of an exported run; None if there is none.

    Raises:
        CheckpointError: the file is damaged.
    """
    exported = folder.is_exported(checkpoint)
    run, _ = split_path(checkpoint)
    path = (run if exported else run / EVALUATION) / CALIBRATION
    if not path.exists():
        return None
    remedy = "Restore the file, or remove it: texts then have no probabilities."
    found: Calibration = InputFile(path, remedy=remedy, error=CheckpointError).json(Calibration)
    ours = weights_of(checkpoint, use_ema=use_ema)  # a run that was copied may have another name
    same = all(found.weights.get(key) == ours[key] for key in ("digest", "weights"))
    return found if exported or same else None


def kinds_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the configurations of the model and of the objective of a config.json.

    Raises:
        ConfigurationError: one of them is of an unknown kind, or has unknown keys.
    """
    model = parse_kind(MODELS, config["model"], at="model")
    return model, parse_kind(OBJECTIVES, config["objective"], at="objective")


def root_of(config: Mapping[str, Any], stores: Path) -> TrainableRoot:
    """Build the model and the objective of a config.json on the CPU, before their weights are loaded.

    Args:
        config: what `run_config` returns.
        stores: folder with the stores that the objective is made from.
    """
    model_config, objective_config = kinds_of(config)
    own = {
        name: torch.from_numpy(ShardStore.open(stores / name).fixed(feature_of(name).column).take(slice(None)))
        for name in objective_config.stores
    }
    return build_root(
        model_config, objective_config, config["shape"], generator=torch.Generator().manual_seed(0), stores=own
    )  # fmt: skip


def refuse_other_data(parts: Parts, fingerprints: Mapping[str, str]) -> None:
    """Refuse a run whose vocabulary or encoder differs from the data's.

    Args:
        fingerprints: of the dataset, by the name of the store.

    Raises:
        FingerprintError: they differ, so that ids or latents of the data would mean something else to the run.
    """
    own = f", make data with its vocabulary (`tokenizer.path={parts.checkpoint}/tokenizer`)"
    for name, what, remedy in (("tokenizer", "vocabulary", own), ("encoder", "encoder", "")):
        ours, theirs = parts.fingerprints.get(name), fingerprints.get(name)
        if ours and theirs and ours != theirs:
            raise FingerprintError(
                f"{parts.checkpoint}: expected a run with the {what} of the dataset ({theirs:.12}), found one with "
                f"another {what} ({ours:.12}). Name the environment or the data folder that the run was "
                f"trained on (`--env=NAME`, `--params data=FOLDER`){remedy}, or choose a run of this dataset."
            )


def run_config(path: Path, checkpoint: Path) -> dict[str, Any]:
    """Read the config.json of a run, with its shape as a DataShape.

    Raises:
        CheckpointError: there is none, it is damaged, or it names a component that is not installed.
    """
    config = config_of(path, *checkpoint.parents[:2])
    try:
        shape = parse(DataShape, config["shape"], at="shape")
        fingerprints = check(config.get("fingerprints", {}), dict[str, str], name="fingerprints")
        kinds_of(config)
    except MMLDLMError as error:
        made = show(config.get("versions", {}), 200)
        raise CheckpointError(
            f"{path}: config.json: {error} Restore the file, install the packages that the run was made with ({made}), "
            "or choose another run."
        ) from None
    return {**config, "shape": shape, "fingerprints": fingerprints}


def _encoder_of(config: dict[str, Any], expected: str, device: torch.device) -> tuple[Callable[[], Any] | None, str]:
    """Return a function that loads the encoder of a run, or None and the reason why it cannot embed texts."""
    if not config:
        return None, Parts.no_encoder
    with contextlib.suppress(ConfigurationError):  # of an encoder that this installation lacks; `load` raises it
        if (reason := no_encoder(parse_encoder(config))) is not None:
            return None, reason

    @functools.cache  # copies of a model share its encoder
    def load() -> Any:
        return load_encoder(parse_encoder(config), device=str(device), expected=expected or None)

    return load, ""
