"""Import a checkpoint of another trainer as a run folder, for sampling and as initial weights.

The model comes from the checkpoint itself (a known format, or an export of this project) or from a run that it is
imported like.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mm_ldlm.core import CheckpointError, ConfigurationError, parse_kind, show, to_dict
from mm_ldlm.core.files import new_directory, write_json
from mm_ldlm.data.corpus.tokenizer import MASKS, PADS, TextTokenizer, base_from_name, base_from_path
from mm_ldlm.data.latents.normaliser import Normaliser
from mm_ldlm.extras.foreign_checkpoints import parameter_names
from mm_ldlm.extras.foreign_checkpoints import reading as legacy
from mm_ldlm.extras.foreign_checkpoints.converting import Converted, block_numbers, convert, head_dim_of
from mm_ldlm.extras.foreign_checkpoints.proving import compare
from mm_ldlm.extras.foreign_checkpoints.trainers import (
    HEADS,
    LENGTH,
    MASK,
    TIME,
    TOKENIZER,
    Trainer,
    filled,
    first,
    flat,
    format_of,
    schedule_of,
    trainer_of,
)
from mm_ldlm.inference.exporting import refuse_existing
from mm_ldlm.inference.files import newest_run
from mm_ldlm.inference.loading import kinds_of, root_of, run_config
from mm_ldlm.models.base import MODELS, DataShape, init_weights
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS, CONFIG
from mm_ldlm.training.checkpoints.weights import identity_of, load_tensors, saved_tensors
from mm_ldlm.training.counters import TrainingState

Timesteps = Literal["none", "plain", "sigma"]
"""How a model of the format `ddit` was trained: without its timestep (MDLM's default), with t in [0, 1] itself, or with
σ = −log α_t."""


def import_checkpoint(
    source: Path,
    run: Path,
    *,
    like: Path | None = None,
    tokenizer: str | None = None,
    heads: int | None = None,
    max_length: int | None = None,
    timesteps: Timesteps | None = None,
) -> Converted:
    """Write the run folder `run` with the weights of `source`, a file or a folder of another trainer.

    Args:
        like: a run of this project with the same model, tokenizer and normaliser.
        tokenizer: a folder, a tokenizer.json, a vocab.txt, or a name on the hub.
        heads, max_length, timesteps: of the model, as far as the checkpoint does not say them itself.

    Raises:
        CheckpointError: the checkpoint cannot be read or expressed, names or shapes do not fit, there is no such
            tokenizer, or the folder exists.
    """
    refuse_existing(run)
    found = legacy.read(source)
    with tempfile.TemporaryDirectory() as temporary:
        config, parts, trainer = _described(
            found, Path(temporary), like, tokenizer=tokenizer, heads=heads, max_length=max_length, timesteps=timesteps
        )
        root = root_of(config, parts)
        for module in (root.model, root.objective):
            if isinstance(module, nn.Module):
                init_weights(module, torch.Generator().manual_seed(0))
        converted = replace(_load(root, found, config), averaged=found.averages is not None)
        tensors = {"model.safetensors": _copied(root)}
        if found.averages is not None:
            _load(root, replace(found, tensors=found.averages), config)
            tensors["ema.safetensors"] = _copied(root)
        if trainer is not None:
            converted = replace(
                converted, differences=compare(root, trainer.reads, trainer.predicts, found.file.parent)
            )
        _write(run, tensors, found, converted, config, parts)
    return converted


def _described(
    found: legacy.Legacy, temporary: Path, like: Path | None, **given: Any
) -> tuple[dict[str, Any], Path, Trainer | None]:
    """Return the configuration of the new run, the folder with its tokenizer and other parts, and another trainer."""
    own = found.file.parent
    form = format_of(found.tensors)
    described = like is not None or ((own / CONFIG).is_file() and (own / "tokenizer").is_dir())
    if described or form is None:
        _refuse_unread(found.file, given)
    if like is not None:
        run = newest_run(like)
        checkpoint = folder.find(run)
        return run_config(run, checkpoint), checkpoint, None
    if described:
        return run_config(own, own), own, None
    if form is not None:
        settings = flat(found.settings)
        trainer = trainer_of(settings, found.tensors, found.file)
        return _derived(found, temporary, settings, trainer, **given), temporary, trainer
    raise CheckpointError(
        f"{found.file}: the names of its {len(found.tensors)} parameters have no known format "
        f"({parameter_names.summary(found.tensors, most=4)}). If a model here has the same "
        "function, give a run of it by --like RUN, after the tensors have been renamed to its names. Other models "
        "cannot be imported."
    )


def _refuse_unread(file: Path, given: Mapping[str, Any]) -> None:
    """Raise CheckpointError if an option is given that the description of the model replaces."""
    if unread := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]:
        raise CheckpointError(
            f"{file}: {', '.join(unread)} are read only for a checkpoint of a known format, without --like. "
            "Leave them out: the model and its tokenizer come from a run."
        )


def _load(root: Any, found: legacy.Legacy, config: Mapping[str, Any]) -> Converted:
    """Copy the converted weights into the root. An objective without any keeps its initial values."""
    targets = saved_tensors(root)
    shapes = {name.removeprefix("model."): value.shape for name, value in targets.items()}
    form, ids = format_of(found.tensors), config["shape"].num_ids
    added = max(0, ids - (0 if form is None else form.size("rows", found.tensors) or 0))
    converted = convert(
        found.tensors, shapes, options=dict(config["model"]), source=found.file, added_ids=added if added <= 2 else 0
    )
    values = {
        name if name.startswith("objective.") else f"model.{name}": value for name, value in converted.tensors.items()
    }
    if not any(name.startswith("objective.") for name in values):
        targets = {name: value for name, value in targets.items() if not name.startswith("objective.")}
    load_tensors(targets, values, found.file)
    return converted


def _copied(root: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in saved_tensors(root).items()}


def _write(
    run: Path, tensors: Mapping[str, Any], found: legacy.Legacy, converted: Converted, config: dict[str, Any],
    parts: Path,
) -> None:  # fmt: skip
    model, objective = kinds_of(config)
    shape, fingerprints = config["shape"], config["fingerprints"]
    step = found.step or 0
    document = {
        "state": asdict(TrainingState(step=step)),
        "identity": identity_of(model=model, shape=shape, objective=objective, fingerprints=fingerprints),
        "metrics": {},
    }
    folders = {part.name: part for part in sorted(parts.iterdir()) if part.is_dir()}
    differences = None if converted.differences is None else converted.differences._asdict()
    origin = {"file": found.file.name, "format": converted.format, "left_out": converted.left_out,
              "differences": differences}  # fmt: skip
    with new_directory(run) as new:
        written = {**config, "model": to_dict(model), "objective": to_dict(objective), "shape": to_dict(shape)}
        write_json(new / CONFIG, {**written, "name": run.name, "imported": origin})
        folder.write(
            new / CHECKPOINTS, step, tensors=tensors, documents={"training_state.json": document}, folders=folders
        )


# -- known formats -----------------------------------------------------------------------------------------------------


def _derived(
    found: legacy.Legacy, temporary: Path, settings: Mapping[str, Any], trainer: Trainer, *, tokenizer: str | None,
    heads: int | None, max_length: int | None, timesteps: Timesteps | None,
) -> dict[str, Any]:  # fmt: skip
    """Derive the configuration of a run from the shapes of its parameters and the configuration of its training."""
    tensors, form = found.tensors, trainer.format
    marks = (*form.marks, form.sizes["mlp_dim"][0], *trainer.fields.values())
    matrices = [name for name in tensors for mark in marks if parameter_names.matches(mark, name)]
    if wrong := [name for name in matrices if tensors[name].ndim != 2 or not tensors[name].numel()]:
        raise CheckpointError(
            f"{found.file}: expected a matrix {wrong[0]}, found shape {tuple(tensors[wrong[0]].shape)}. Choose another "
            "checkpoint."
        )
    sizes = {name: form.size(name, tensors) for name in form.sizes}
    dim, head_dim = sizes["dim"] or 0, head_dim_of(tensors)
    max_length = _count("--max-length", max_length, sizes["max_length"], first(settings, *LENGTH), file=found.file)
    in_file = dim // head_dim if head_dim else None
    heads = _count("--heads", heads, in_file, first(settings, *HEADS), file=found.file)
    words = _tokenizer(
        found.file.parent, tokenizer, first(settings, *TOKENIZER), rows=sizes["rows"] or 0, max_length=max_length,
        added=trainer.added, mask=settings.get(MASK),
    )  # fmt: skip
    words.save(temporary / "tokenizer")
    fields = {field: (tensors[name].shape[-1],) for field, name in trainer.fields.items()}
    fingerprints = {"tokenizer": words.fingerprint}
    if "latents" in fields:  # vectors of length 1 have coordinates of mean square 1/d
        (d,) = fields["latents"]
        normaliser = Normaliser("standard", np.zeros(d), np.full(d, d**-0.5), unit_norm=True)
        normaliser.save(temporary / "normaliser")
        fingerprints["normaliser"] = normaliser.fingerprint
    schedule = schedule_of(settings)
    options = {
        **form.options, **_timesteps(found.file, timesteps, settings, trainer, schedule),
        **{name: size for name, size in sizes.items() if name == "conditioning_dim"},
        "dim": dim, "depth": 1 + max(block_numbers(form, tensors)), "heads": heads,
        "mlp_ratio": (sizes["mlp_dim"] or 4 * dim) / dim,
        **filled(trainer.model, settings),
    }  # fmt: skip
    process = {"kind": "absorbing", "schedule": schedule, **trainer.objective.get("process", {})}
    try:
        model = parse_kind(MODELS, options, at="model")
        objective = parse_kind(
            OBJECTIVES,
            {**filled(trainer.objective, settings), "process": process, "length_weight": 0.0},
            at="objective",
        )
    except ConfigurationError as error:
        raise CheckpointError(f"{found.file}: its shapes belong to no model here: {error}") from None
    shape = DataShape(
        vocab_size=words.vocab_size, pad_id=words.pad_id, mask_id=words.mask_id, max_length=max_length, fields=fields
    )
    return {"model": to_dict(model), "objective": to_dict(objective), "shape": shape, "encoder": {},
            "fingerprints": fingerprints}  # fmt: skip


def _count(option: str, *values: Any, file: Path) -> int:
    """Return the first value that is given.

    Raises:
        CheckpointError: there is none, or it is not a count.
    """
    value = next((each for each in values if each is not None), None)
    if type(value) is not int or not 1 <= value <= 65_536:
        raise CheckpointError(
            f"{file}: expected {option} from 1 to 65,536, found {show(value, 60)} in the command, the file and its "
            f"config.yaml. Give {option} N."
        )
    return value


def _timesteps(
    file: Path, given: Timesteps | None, settings: Mapping[str, Any], trainer: Trainer, schedule: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options by which the timestep reaches the model as it did in the training."""
    way: str | None = given or trainer.timesteps
    if given is None and isinstance(conditioned := first(settings, *TIME), bool) and way != "constant":
        way = "sigma" if conditioned else "none"
    elif way is None and "model.diffusion_process" in settings:
        way = "plain"
    if way is None:
        raise CheckpointError(
            f"{file}: expected --timesteps, because the names do not show how the timestep reached the model. Give "
            "none if it was trained without (time_conditioning: false, MDLM's default), sigma if with σ = −log α_t "
            "(time_conditioning: true), or plain if with t in [0, 1] itself."
        )
    ways: dict[str, dict[str, Any]] = {
        "none": {"time_conditioning": False}, "constant": {}, "plain": {"time_factor": 1.0},
        "sigma": {"time_factor": 1.0, "time_schedule": schedule},
    }  # fmt: skip
    return ways[way]


def _tokenizer(
    place: Path, named: str | None, trained: str | None, *, rows: int, max_length: int, added: str, mask: Any
) -> TextTokenizer:
    """Load the tokenizer that was named, the one next to the weights, or the one that the configuration names.

    Args:
        mask: id that the configuration gives to [MASK]; None if it gives none.
    """
    beside = [place / name for name in ("tokenizer.json", "vocab.txt") if (place / name).is_file()]
    if named is None and not beside and not isinstance(trained, str):
        raise CheckpointError(
            f"{place}: expected tokenizer.json or vocab.txt next to the weights, found none. Give the tokenizer of the "
            "checkpoint by --tokenizer, a folder, a file or a name."
        )
    source = named or (str(beside[0]) if beside else str(trained))
    try:
        base = base_from_path(Path(source), lowercase=True) if Path(source).exists() else base_from_name(source)
    except ConfigurationError as error:
        raise CheckpointError(
            f"{place}: expected its tokenizer.json next to the weights, or its folder, file or name by --tokenizer. "
            f"{'That' if named else 'The configuration'} names {show(source, 60)}: {error}"
        ) from None
    size = base.get_vocab_size(with_added_tokens=True)
    others = () if mask == size else PADS if added in PADS else MASKS
    if rows == size + 1 and all(base.token_to_id(name) is None for name in others):
        base.add_special_tokens([added])  # the id after the tokenizer's last
    if mask is None:
        return TextTokenizer(base, max_length=max_length)
    words = TextTokenizer(_with_mask(base, mask), max_length=max_length)
    if words.mask_id != mask:
        raise CheckpointError(
            f"{place}: expected a tokenizer in which the id {show(mask, 60)} ({MASK}) is [MASK] or another special "
            f"token, found [MASK] with the id {words.mask_id}. Give the tokenizer of the checkpoint by --tokenizer."
        )
    return words


def _with_mask(base: Any, mask: Any) -> Any:
    """Return a tokenizer in which the special token of the id `mask` is [MASK], whatever it was before.

    In a tokenizer without [PAD], `<|endoftext|>` becomes it, because such tokenizers pad with this token.
    """
    document = json.loads(base.to_str())
    vocabulary, padded = document["model"]["vocab"], any(base.token_to_id(name) is not None for name in PADS)
    for token in document["added_tokens"]:
        old = new = token["content"]
        if token["id"] == mask and old not in MASKS:
            new = MASKS[0]
        elif old == "<|endoftext|>" and not padded:
            new = PADS[0]
        token["content"] = new
        if old in vocabulary:
            vocabulary[new] = vocabulary.pop(old)
    return type(base).from_str(json.dumps(document))
