"""Planning of a run: typed parameters and the validated dataset become the training spec."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import torch

from mm_ldlm.core import ConfigurationError, StoreError, parse, to_dict
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.data.features import feature_of
from mm_ldlm.distributed.launch import with_environment
from mm_ldlm.training.batches import BatchPlan
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import stores_of_fields
from mm_ldlm.training.spec import TrainingSpec

log = logging.getLogger(__name__)


def plan(
    dataset: Dataset, *, runs: Path, model: Any, objective: Any, training: TrainingConfig, encoder: Any, seed: int
) -> TrainingSpec:
    """Make the spec of typed parameters and the validated dataset, with paths relative to `runs`.

    Raises:
        ConfigurationError: model, objective, labels and data do not fit together, or the run has the name of a file.
        StoreError: the dataset lacks a store that the objective or the model reads.
    """
    objective.capabilities(model)  # refuses a model that the objective cannot train
    stores = ("index", "tokens", *stores_of_fields(objective.fields), *model.stores, *objective.stores)
    for name in stores:
        dataset.require(name)
    for name in (*objective.fields, *objective.stores):
        feature_of(name).refuse_other(dataset.require(name), objective=objective)
    own = {name: torch.from_numpy(dataset.values(name)) for name in objective.stores}
    shape = dataclasses.replace(dataset.shape, noise_ids=objective.noise_ids(dataset.shape, **own))
    name = training.run_name
    if name is not None and (runs / name).exists() and not (runs / name).is_dir():
        raise ConfigurationError(
            f"parameter 'training.run_name': expected the name of a folder in {runs}, found {name!r}, which is a file "
            "there. Choose another name, or remove the file."
        )
    named = {*stores, "tokenizer", *(("encoder",) if "latents" in stores else ())}
    seed = seed if training.seed is None else training.seed
    return TrainingSpec(
        seed=seed,
        dataset=Path(os.path.relpath(dataset.directory.resolve(), runs.resolve())).as_posix(),
        fingerprints={name: value for name, value in dataset.fingerprints.items() if name in named},
        shape=shape,
        model=model,
        objective=objective,
        training=_resolved(training, dataset, seed=seed),
        encoder=to_dict(encoder) if "latents" in stores else {},
    )


def _resolved(training: TrainingConfig, dataset: Dataset, *, seed: int) -> TrainingConfig:
    """Replace the size of the batch by that of the global batch, and `max_steps` by the steps that all limits allow.

    The size per device is multiplied by the processes of all hosts, which the variables of the launcher count. The
    batches of a run are a function of its seed and its data, so the number of steps is exact, whatever the number of
    processes and resumes, and the schedule ends with the run. After a roll-back the data continue with other batches,
    of slightly other sizes.
    """
    lengths = dataset.lengths("train")
    if not len(lengths):
        raise StoreError(
            f"{dataset.directory}: expected examples of split 'train', found none. Check ingestion.splits."
        )
    if training.validate_every and not len(dataset.rows("validation")):
        raise ConfigurationError(
            f"parameter 'training.validate_every' is {training.validate_every}, but the split 'validation' has no "
            "examples. Add texts, hold out more of them (`--params ingestion.splits.validation=0.1,"
            "ingestion.splits.test=0.1`), or set training.validate_every to 0."
        )
    launch = with_environment(training.launch)
    batch = training.batch.of_processes(launch.processes * launch.nodes)
    batches = BatchPlan(lengths, batch, seed=seed, max_length=dataset.tokenizer.max_length)
    steps = {} if training.max_steps is None else {"max_steps": training.max_steps}
    if training.epochs is not None:
        steps["epochs"] = training.epochs * len(batches.epoch(0))
    if training.max_tokens is not None:
        steps["max_tokens"] = batches.steps_until(training.max_tokens)
    first = min(steps, key=lambda name: steps[name])
    cut = steps.get("epochs", 0) > steps[first]
    log.log(
        logging.WARNING if cut else logging.INFO,
        "training.%s ends the training after %d steps (%s)%s", first, steps[first],
        "; ".join(f"{name} {getattr(training, name):,}: {count:,} steps" for name, count in steps.items()),
        f". To train all epochs, set training.{first} to null" if cut else "",
    )  # fmt: skip
    changed = {"batch": to_dict(batch), "max_steps": steps[first]}
    return parse(TrainingConfig, to_dict(training) | changed, at="training")
