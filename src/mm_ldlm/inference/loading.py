"""Loading of a run folder, which contains everything but the encoder.

If the run has latents, the encoder that its configuration names is loaded when it is first needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.checkpoints import folder
from mm_ldlm.checkpoints.weights import load_parameters
from mm_ldlm.config import parse, parse_kind
from mm_ldlm.corpus.tokenizer import TextTokenizer
from mm_ldlm.data.dataset import values
from mm_ldlm.encoders.base import load_encoder
from mm_ldlm.encoders.config import EncoderConfig
from mm_ldlm.errors import CheckpointError, FingerprintError, SamplingError
from mm_ldlm.latents.normaliser import Normaliser
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.base import BuildsOnModel
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.store import ShardStore


@dataclass(frozen=True)
class Parts:
    """Components that `MMLDLM` is built from."""

    model: GenerativeModel
    capabilities: Capabilities
    tokenizer: TextTokenizer
    normaliser: Normaliser | None
    """None for a run without latents"""
    image_normaliser: Normaliser | None
    """None for a run without images"""
    load_encoder: Callable[[], Any] | None
    """Loads the encoder that the run was trained on; None if the run names no encoder"""
    checkpoint: Path
    step: int
    fingerprints: dict[str, str]
    """Fingerprints of the inputs of the run, by name"""


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
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such run folder.")
    path = folder.newest_run(path)
    found = folder.find(path, which=str(checkpoint).removeprefix("step-"))
    folder.check(found)
    config = _config(path, found)
    tokenizer = TextTokenizer.load(found / "tokenizer")
    objective_config = parse_kind(OBJECTIVES, config["objective"], at="objective")
    model_config = parse_kind(MODELS, config["model"], at="model")
    shape = DataShape(**config["shape"])
    stores = {name: torch.from_numpy(values(ShardStore.open(found / name))) for name in objective_config.stores}
    objective = objective_config.build(shape, **stores)
    model = model_config.build(shape, generator=torch.Generator().manual_seed(0))
    if isinstance(objective, BuildsOnModel):
        objective.attach(model)
    root = TrainableRoot(model, objective)
    weights = "ema.safetensors" if use_ema and (found / "ema.safetensors").is_file() else "model.safetensors"
    load_parameters(root, folder.tensors(found, weights), found / weights)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        root = root.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise SamplingError(
            f"device {str(chosen)!r} cannot be used on this machine ({str(error).splitlines()[0]}). "
            "Choose cpu, cuda or cuda:N, or None for the default."
        ) from None
    root.eval().requires_grad_(False)
    fingerprints = {str(name): str(value) for name, value in config.get("fingerprints", {}).items()}
    return Parts(
        model=objective.generative_model(root.model),
        capabilities=objective_config.capabilities(model_config),
        tokenizer=tokenizer,
        normaliser=_normaliser(found / "normaliser"),
        image_normaliser=_normaliser(found / "image_normaliser"),
        load_encoder=_encoder_loader(config.get("encoder") or {}, fingerprints.get("encoder", ""), chosen),
        checkpoint=found,
        step=folder.step_of(found),
        fingerprints=fingerprints,
    )


def _normaliser(folder: Path) -> Normaliser | None:
    return Normaliser.load(folder) if folder.is_dir() else None


def _config(path: Path, checkpoint: Path) -> dict[str, Any]:
    for place in (path, *checkpoint.parents[:2]):
        if (place / "config.json").is_file():
            try:
                config: dict[str, Any] = json.loads((place / "config.json").read_text(encoding="utf-8"))
            except ValueError as error:
                raise CheckpointError(f"{place / 'config.json'}: not readable as JSON ({error}).") from None
            if missing := sorted({"model", "objective", "shape"} - set(config)):
                raise CheckpointError(
                    f"{place / 'config.json'}: {', '.join(missing)} missing. Give the path of a run folder."
                )
            return config
    raise CheckpointError(f"{path}: expected a run folder with config.json, found none. Give the path of such a one.")


def _encoder_loader(config: dict[str, Any], expected: str, device: Any) -> Callable[[], Any] | None:
    if not config:
        return None

    def load() -> Any:
        encoder = load_encoder(parse(EncoderConfig, config, at="encoder"), device=str(device))
        if expected and encoder.fingerprint != expected:
            raise FingerprintError(
                f"expected the encoder with fingerprint {expected}, which made the latents of the run; found encoder "
                f"'{config.get('name')}' with {encoder.fingerprint}, so its weights or settings differ. "
                "Pass the original one as encoder=load_encoder(...)."
            )
        return encoder

    return load
