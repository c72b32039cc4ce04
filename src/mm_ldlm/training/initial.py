"""Initialise weights from a checkpoint (`training.init_from`).

Its vocabulary and normaliser must be the run's: rows of the embedding table and the output layer belong to
tokens, and latents are standardised by the normaliser.
"""

import os
from pathlib import Path

from mm_ldlm.core import CheckpointError, ConfigurationError, nearest, show, to_dict
from mm_ldlm.objectives.root import TrainableRoot
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.weights import differences, load_tensors, persistent_buffers, refuse_non_finite
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.spec import TrainingSpec


def refuse_missing_origin(training: TrainingConfig, *, runs: Path) -> None:
    """Refuse a `training.resume` or `training.init_from` that names no checkpoint, before the first node of a run.

    Raises:
        ConfigurationError: the folder does not exist; the message names the nearest one.
        CheckpointError: it contains no complete checkpoint.
    """
    for key, named in (("resume", training.resume), ("init_from", training.init_from)):
        if named in ("auto", "never", None):
            continue
        path = runs / named
        if not os.path.isdir(path):  # `Path.is_dir` raises for a name that is too long
            near = nearest(path.name, sorted(entry.name for entry in path.parent.glob("*")))
            raise ConfigurationError(
                f"parameter 'training.{key}': expected the folder of a run or a checkpoint, found none at "
                f"{show(named)} (relative to {runs}).{near} Correct the name, or set an absolute path."
            )
        folder.find(path)


def initialise(root: TrainableRoot, path: Path, *, spec: TrainingSpec, tracker: Tracker) -> None:
    """Initialise the root with the weights of a checkpoint (the EMA weights if it has them).

    Parameters of the objective keep their initial values if the checkpoint has none of them. Buffers are not taken from
    the checkpoint: they depend on the data and the steps of this run.

    Raises:
        CheckpointError: the checkpoint belongs to another model, vocabulary or normaliser, or contains non-finite
            values.
    """
    source = folder.find(path)
    name = "ema.safetensors" if (source / "ema.safetensors").is_file() else "model.safetensors"
    values = folder.tensors(source, name)
    identity = folder.document(source, "training_state.json").get("identity")
    theirs = identity if isinstance(identity, dict) else {}
    if isinstance(of_model := theirs.get("model"), dict) and (differing := differences(of_model, to_dict(spec.model))):
        tracker.event(0, "init_differs", fields=differing)
    own = {name for name in values if name.startswith("objective.")} & dict(root.named_parameters()).keys()
    targets = {name: p for name, p in root.named_parameters() if own or not name.startswith("objective.")}
    buffers = persistent_buffers(root).keys()
    values = {
        name: value for name, value in values.items()
        if name not in buffers and (own or not name.startswith("objective."))
    }  # fmt: skip
    refuse_non_finite(values, source, remedy="Name another checkpoint in training.init_from.")
    for name, what in (("tokenizer", "vocabulary"), ("normaliser", "normaliser of the latents")):
        ours, other = spec.fingerprints.get(name), theirs.get(name)
        unknown = not other and name == "normaliser"  # of a model that never read latents
        if ours and ours != other and not unknown:
            raise CheckpointError(
                f"{source}: expected the {what} of this run for the weights of training.init_from, found another one. "
                f"Prepare the data with the {name} of the weights (`--params {name}.path={source / name}`), or leave "
                "training.init_from out."
            )
    load_tensors(targets, values, source)
