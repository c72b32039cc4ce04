"""Training spec: one JSON file with everything that a worker needs, planned by the pipeline and read by every rank.

`plan` makes it from typed parameters and the validated dataset. Its paths are relative to the folder that contains it
(the folder of all runs), so that it can be moved with its data.
"""

import dataclasses
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch

from mm_ldlm.core import ConfigurationError, parse, to_dict
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.data.features import feature_of
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.distributed.launch import with_environment
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training.batches import BatchPlan, Ints
from mm_ldlm.training.checkpoints.reference import CHECKPOINTS
from mm_ldlm.training.config import BatchConfig, TrainingConfig, refuse_empty_splits, splits_read

log = logging.getLogger(__name__)

# Parameters that two sessions of one run may set differently, and those that the plan resolves into others: epochs and
# max_tokens into max_steps, and seed into the spec's own.
_FREE = frozenset(
    {"launch", "resume", "run_name", "log_every", "diagnose_every", "preflight", "threads",
     "collective_timeout_minutes", "device", "checkpoint", "max_minutes", "max_tokens", "epochs", "parallel", "seed",
     "show_every_seconds"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Specification of a training run.

    Attributes:
        dataset: folder of the validated dataset.
        fingerprints: fingerprints of the stores that training reads, of the tokenizer, and of the encoder if there are
            latents.
        shape: sizes for which the model is built: vocabulary, ids of the noise, longest text, dimension of a latent.
        model, objective: configurations of their kinds (`models.base.MODELS`, `objectives.base.OBJECTIVES`).
        encoder: parameters of the encoder that made the latents; empty for a dataset without latents.
    """

    seed: int
    dataset: str
    fingerprints: dict[str, str]
    shape: DataShape
    model: Annotated[Any, MODELS]
    objective: Annotated[Any, OBJECTIVES]
    training: TrainingConfig
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)
    format_version: Literal[3] = 3

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the result: data, parameters and seed, but no machines."""
        training = {key: value for key, value in to_dict(self.training, retired=True).items() if key not in _FREE}
        training["batch"].pop("prefetch")
        parts = {**to_dict({"model": self.model, "objective": self.objective}, retired=True), "training": training}
        return fingerprint({"seed": self.seed, "fingerprints": self.fingerprints, **parts})

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.training.run_name or f"run-{self.fingerprint[:12]}"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **to_dict(self)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """Read a spec from plain JSON.

        Raises:
            ConfigurationError: the format differs, or a field is missing, unknown or invalid.
        """
        return parse(cls, {key: value for key, value in found.items() if key != "name"}, at="spec")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a spec."""
        remedy = "Write it by `kedro run --to-nodes=plan_training`."
        return cls.from_dict(InputFile(path, error=ConfigurationError, remedy=remedy).json(dict))


# -- planning ---------------------------------------------------------------------------------------------------------


def stores_of_fields(fields: Collection[str]) -> tuple[str, ...]:
    """List the stores that the fields of a batch are read from, each with its normaliser if it has one."""
    return tuple(store for field in fields for store in (field, feature_of(field).normaliser_folder) if store)


def plan(
    dataset: Dataset, *, runs: Path, model: Any, objective: Any, training: TrainingConfig, encoder: Any, seed: int
) -> TrainingSpec:
    """Make the spec from typed parameters and the validated dataset, with paths relative to `runs`.

    Raises:
        ConfigurationError: model, objective, labels and data do not fit together, or the run would resume from itself.
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
    named = {*stores, "tokenizer", *(("encoder",) if "latents" in stores else ())}
    seed = seed if training.seed is None else training.seed
    spec = TrainingSpec(
        seed=seed,
        dataset=Path(os.path.relpath(dataset.directory.resolve(), runs.resolve())).as_posix(),
        fingerprints={name: value for name, value in dataset.fingerprints.items() if name in named},
        shape=shape,
        model=model,
        objective=objective,
        training=_resolved(training, dataset, seed=seed),
        encoder=to_dict(encoder) if "latents" in stores else {},
    )
    if (runs / training.resume).resolve().parent == (runs / spec.name / CHECKPOINTS).resolve():
        raise ConfigurationError(
            f"parameter 'training.resume': expected another run, found a checkpoint of '{spec.name}' itself, "
            "which continues from its newest one. To start from an earlier one, set training.run_name to a new name."
        )
    return spec


def _resolved(training: TrainingConfig, dataset: Dataset, *, seed: int) -> TrainingConfig:
    """Replace the batch size by the global batch size, and `max_steps` by the number of steps that all limits allow.

    The size per device is multiplied by the processes of all hosts, whose number the launcher's variables may set. The
    batches of a run are a function of its seed and data, so the number of steps is exact for any number of processes
    and resumes, and the schedule ends with the run. After a roll-back, other batches of slightly other sizes follow.
    """
    lengths = dataset.lengths("train")
    refuse_empty_splits({"validation": len(dataset.rows("validation"))}, read=splits_read(training))
    batch, steps = limits(training, lengths, seed=seed, max_length=dataset.tokenizer.max_length)
    first = min(steps, key=lambda name: steps[name])
    cut = steps.get("epochs", 0) > steps[first]
    log.info(
        "training.%s ends the training after %d steps (%s)%s", first, steps[first],
        "; ".join(f"{name} {getattr(training, name):,}: {count:,} steps" for name, count in steps.items()),
        f". To train all epochs, set training.{first} to null" if cut else "",
    )  # fmt: skip
    changed = {"batch": to_dict(batch), "max_steps": steps[first]}
    return parse(TrainingConfig, to_dict(training) | changed, at="training")


def limits(
    training: TrainingConfig, lengths: Ints, *, seed: int, max_length: int
) -> tuple[BatchConfig, dict[str, int]]:
    """Compute the global batch of all processes, and parameter → the steps that this limit of a training allows.

    Args:
        lengths: number of tokens of each training example.
        max_length: maximum length of the tokenizer.
    """
    launch = with_environment(training.launch)
    batch = training.batch.of_processes(launch.processes * launch.nodes)
    batches = BatchPlan(lengths, batch, seed=seed, max_length=max_length)
    steps = {} if training.max_steps is None else {"max_steps": training.max_steps}
    if training.epochs is not None:
        steps["epochs"] = training.epochs * len(batches.epoch(0))
    if training.max_tokens is not None:
        steps["max_tokens"] = batches.steps_until(training.max_tokens)
    return batch, steps
