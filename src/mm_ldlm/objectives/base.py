"""Interfaces of objectives: `Batch`, `Losses`, `Objective` and `ObjectiveConfig`.

B examples of this micro-batch, L text length (padded).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mm_ldlm.core.errors import ConfigurationError
from mm_ldlm.diffusion.random import RowGenerator
from mm_ldlm.models.base import DataShape
from mm_ldlm.objectives.capabilities import Capabilities
from mm_ldlm.objectives.generation import GenerativeModel

Losses = dict[str, tuple[Tensor, Tensor]]
"""name → (sum over this micro-batch, count), both 0-D. Names in `Objective.weights` are trained, others reported."""
Unit = Literal["tokens", "examples"]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A micro-batch: this rank's part of the global batch, or a part of it under gradient accumulation."""

    tokens_BL: Tensor
    """int64, pad_id where not valid"""
    valid_BL: Tensor
    """bool, True at tokens; an example without tokens is filling and is counted nowhere"""
    fields: Mapping[str, Tensor]
    """further data of the examples by name, first axis B; for example "latents" (B, d), float32, standardised"""
    examples_B: Tensor
    """int64, row of the example in the split; -1 for filling"""
    position_B: Tensor
    """int64, position in the global batch"""
    global_size: int
    """examples in the global batch, over all ranks and micro-batches"""
    global_tokens: int
    """valid tokens in the global batch"""

    @property
    def real_B(self) -> Tensor:
        """Mask (B,) of the examples that are data, not filling."""
        return self.examples_B >= 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        own = {
            "tokens": self.tokens_BL, "valid": self.valid_BL, "examples": self.examples_B, "position": self.position_B
        }  # fmt: skip
        return {**own, **self.fields}

    def normaliser(self, unit: Unit) -> int:
        """Return the divisor of a loss counted in `unit`: a count over the global batch, the same on every rank."""
        return self.global_tokens if unit == "tokens" else self.global_size

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`; copies from pinned memory do not block."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Copy the batch to page-locked memory, for non-blocking copies to a GPU."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> Batch:
        changed: dict[str, Any] = {
            field.name: function(value)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, fields={k: function(v) for k, v in self.fields.items()}, **changed)


@runtime_checkable
class Objective(Protocol):
    """Objective of training: the losses of a batch.

    If an objective is an `nn.Module`, its parameters are trained and saved with those of the model.
    """

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a batch that the objective reads."""
        ...

    @property
    def weights(self) -> Mapping[str, float]:
        """Factor of each trained loss in the total."""
        ...

    @property
    def units(self) -> Mapping[str, Unit]:
        """The unit in which each trained loss is counted."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of steps (the modes of the multimodal objective); their losses are logged and validated separately."""
        ...

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the kind of a step, the same on all ranks and in all micro-batches."""
        ...

    def __call__(self, model: nn.Module, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        """Compute the losses of one micro-batch; `generator` is new for each step, with one row for each example."""
        ...

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts of the model to freeze; `trained` is whether the weights come from a checkpoint."""
        ...

    @property
    def idle_parts(self) -> frozenset[str]:
        """Parts that receive no gradient by configuration (a loss weight of 0)."""
        ...

    def expected_first_loss(self) -> Mapping[str, float]:
        """Return the value of each reported loss (sum ÷ count) at initial weights where it is known, such as log V."""
        ...

    def generative_model(self, model: nn.Module) -> GenerativeModel:
        """Wrap the trained model for inference: sampling and scoring with the conventions of this objective."""
        ...


@runtime_checkable
class UsesTokenCounts(Protocol):
    """An objective that starts from the token frequencies of the training split."""

    def set_token_counts(self, counts: Callable[[], Tensor]) -> None:
        """Take the frequencies; `counts` reads the whole split and returns (ids,) int64. Called once, before training.

        What is made from them belongs in a persistent buffer, which the checkpoints carry.
        """
        ...


@runtime_checkable
class UsesTrainingLength(Protocol):
    """An objective that changes in the course of training."""

    def set_training_length(self, steps: int) -> None:
        """Take the number of steps of the run, as its budget allows. Called once, before training."""
        ...


@runtime_checkable
class ObservesSteps(Protocol):
    """An objective that follows its own losses."""

    def observe(self, losses: Mapping[str, tuple[float, float]], *, step: int) -> str | None:
        """Take in the (sum, count) of each loss over the global batch, after a step that was applied.

        The numbers are the same on all ranks. A state that results belongs in a persistent buffer. Returns a warning
        for the log, or None.
        """
        ...


@runtime_checkable
class BuildsOnModel(Protocol):
    """An objective whose modules depend on the model, such as a head on its features."""

    def attach(self, model: nn.Module) -> None:
        """Make the modules for this model. Called once, before initial values are drawn or weights are loaded."""
        ...


class ObjectiveConfig(Protocol):
    """Configuration of an objective; `objectives.registry.OBJECTIVES` lists them."""

    kind: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the dataset that training reads ("latents"); only their stores are opened and fingerprinted."""
        ...

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the objective is made from, beside its fields (the clusters of a text process).

        Checkpoints carry copies of them."""
        ...

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        """Number of ids beyond the tokenizer's that the model reads (`DataShape.noise_ids`)."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Options that a checkpoint and a run that loads it must share, because they define what the outputs mean."""
        ...

    def capabilities(self, model: Any) -> Capabilities:
        """Return what a run with this objective and this model configuration can do.

        Raises:
            ConfigurationError: the model cannot be trained with this objective.
        """
        ...

    def build(self, shape: DataShape, *, fixed_shapes: bool = False, **stores: Tensor) -> Objective:
        """Build the objective for data of a shape.

        With `fixed_shapes` the sizes of all tensors depend only on the batch's shape, as `torch.compile` needs. Each of
        `self.stores` is an argument of its name: (rows, d), all rows.
        """
        ...


def require_interface(objective: Any, model: Any, *interfaces: str) -> None:
    """Raise ConfigurationError unless the model configuration has an interface that the objective trains."""
    if model.interface not in interfaces:
        named = " or ".join(f"'{interface}'" for interface in interfaces)
        raise ConfigurationError(
            f"parameter 'objective.kind' is {objective.kind!r}, which trains a model of interface {named}; found "
            f"'model.kind' {model.kind!r}, of interface '{model.interface}'. Choose a model and an objective that fit "
            "(docs/models.md)."
        )
