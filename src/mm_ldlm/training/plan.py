"""Planning of a run: typed parameters and the validated dataset become the training spec."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mm_ldlm.core.config import parse, parse_kind, to_dict
from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.data.features import feature_of
from mm_ldlm.distributed.launch import with_environment
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import no_examples, no_validation, stores_of_fields
from mm_ldlm.training.initial import refuse_other_vocabulary
from mm_ldlm.training.spec import TrainingSpec

log = logging.getLogger(__name__)


def plan(
    dataset: Dataset,
    *,
    runs: Path,
    model: Any,
    objective: Any,
    training: Any,
    encoder: Any,
    seed: int,
    tracking: dict[str, Any],
) -> TrainingSpec:
    """Make the spec, which contains everything that a worker needs, with paths relative to `runs`.

    Raises:
        ConfigurationError: model, objective, labels and data do not fit together, or the run has the name of a file.
        StoreError: the dataset lacks a store that the objective or the model reads.
        CheckpointError: the checkpoint of `init_from` is damaged, or has another vocabulary.
    """
    typed_model = parse_kind(MODELS, model, at="model")
    typed_objective = parse_kind(OBJECTIVES, objective, at="objective")
    typed_objective.capabilities(typed_model)  # refuses a model that the objective cannot train
    read = stores_of_fields(typed_objective.fields)
    stores = ("index", "tokens", *read, *typed_model.stores, *typed_objective.stores)
    for name in stores:
        dataset.require(name)
    for name in (*typed_objective.fields, *typed_objective.stores):
        feature_of(name).refuse_other(dataset.require(name), objective=typed_objective)
    own = {name: torch.from_numpy(dataset.values(name)) for name in typed_objective.stores}
    noise_ids = typed_objective.noise_ids(dataset.shape, **own)
    typed_training = parse(TrainingConfig, training, at="training")
    _refuse_other_vocabulary(typed_training, runs, dataset)
    name = typed_training.run_name
    if name is not None and (runs / name).exists() and not (runs / name).is_dir():
        raise ConfigurationError(
            f"parameter 'training.run_name': expected the name of a folder in {runs}, found {name!r}, which is a file "
            "there. Choose another name, or remove the file."
        )
    seed = seed if typed_training.seed is None else typed_training.seed
    named = {*stores, "tokenizer", *(("encoder",) if "latents" in stores else ())}
    return TrainingSpec(
        seed=seed,
        dataset=Path(os.path.relpath(dataset.directory.resolve(), runs.resolve())).as_posix(),
        fingerprints={name: value for name, value in dataset.fingerprints.items() if name in named},
        shape=dataclasses.replace(dataset.shape, noise_ids=noise_ids),
        model=typed_model,
        objective=typed_objective,
        training=_resolved(typed_training, dataset, seed=seed),
        encoder=to_dict(encoder) if "latents" in stores else {},
        tracking=tracking,
    )


def _refuse_other_vocabulary(training: TrainingConfig, runs: Path, dataset: Dataset) -> None:
    """Refuse a checkpoint of `init_from` with another vocabulary. One that is missing is refused by the session."""
    if training.init_from is not None and training.init_vocabulary == "same" and (runs / training.init_from).is_dir():
        refuse_other_vocabulary(runs / training.init_from, dataset.tokenizer)


def _resolved(training: TrainingConfig, dataset: Dataset, *, seed: int) -> TrainingConfig:
    """`training` with the size of its global batch, and with the steps that its limits allow as max_steps.

    The size per device is multiplied by the processes of all hosts, which the variables of the launcher count. The
    batches of a run are a function of its seed and its data, so the number of steps is exact, whatever the number of
    processes and resumes, and the schedule ends with the run. After a roll-back the data continue with other batches,
    of slightly other sizes.
    """
    launch = with_environment(training.launch)
    batch = training.batch.of_processes(launch.processes * launch.nodes)
    lengths = dataset.lengths("train")
    planned = dataclasses.replace(training, batch=batch)
    steps = steps_of(planned, lengths, max_length=dataset.tokenizer.max_length, seed=seed)
    if not steps:
        raise no_examples(dataset.directory)
    if training.validate_every and not len(dataset.rows("validation")):
        raise no_validation(training.validate_every)
    first = min(steps, key=lambda name: steps[name])
    if len(steps) > 1 or first != "max_steps":
        _report_end(training, steps, first)
    changed = {"batch": to_dict(batch), "max_steps": steps[first]}
    return parse(TrainingConfig, to_dict(training) | changed, at="training")


def steps_of(
    training: TrainingConfig, lengths: npt.NDArray[np.int64], *, max_length: int, seed: int
) -> dict[str, int]:  # fmt: skip
    """Return the number of steps that each limit of the training allows, by its name.

    Args:
        training: parameters whose batch has the global size (`BatchConfig.of_processes`).
        lengths: number of tokens of each training example; if there are none, only `max_steps` counts.
    """
    steps = {} if training.max_steps is None else {"max_steps": training.max_steps}
    if len(lengths):
        batches = BatchPlan(lengths, training.batch, seed=seed, max_length=max_length)
        if training.epochs is not None:
            steps["epochs"] = training.epochs * len(batches.epoch(0))
        if training.max_tokens is not None:
            steps["max_tokens"] = batches.steps_until(training.max_tokens)
    return steps


def _report_end(training: TrainingConfig, steps: dict[str, int], first: str) -> None:
    """Log which limit ends the training; warn if not all epochs fit."""
    limits = "; ".join(
        f"{name} {getattr(training, name):,}" + ("" if name == "max_steps" else f": {steps[name]:,} steps")
        for name in sorted(steps, key=lambda name: steps[name])
    )
    cut = "epochs" in steps and steps["epochs"] > steps[first]
    log.log(
        logging.WARNING if cut else logging.INFO,
        "%s ends the training after %d steps (%s)%s", f"training.{first}", steps[first], limits,
        f". To train all epochs, set training.{first} to null" if cut else "",
    )  # fmt: skip
