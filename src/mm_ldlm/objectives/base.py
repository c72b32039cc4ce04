"""Interfaces of objectives: `Batch`, `Losses`, `Objective` and `ObjectiveConfig`.

B examples of this micro-batch, L text length (padded).
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from mm_ldlm.core import ConfigurationError, Kinds
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

    def to(self, device: torch.device) -> "Batch":
        """Copy the batch to `device`; copies from pinned memory do not block."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Batch":
        """Copy the batch to page-locked memory, for non-blocking copies to a GPU."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> "Batch":
        changed: dict[str, Any] = {
            field.name: function(value)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, fields={k: function(v) for k, v in self.fields.items()}, **changed)


class Objective(nn.Module, ABC):
    """Objective of training: the losses of a batch. Subclasses define `weights`, `units`, `forward` and
    `generative_model`, and override the rest where they differ.

    Parameters of an objective, of its process and of its schedules are trained, averaged and saved with the model's.
    Other state that a resumed run needs belongs in persistent buffers.

    Attributes:
        fields: fields of a batch that the objective reads.
        weights: factor of each trained loss in the total; a loss without an entry is only reported.
        units: the unit in which each trained loss is counted.
        kinds: kinds of steps (the modes of the multimodal objective), whose losses are logged and validated separately.
        idle_parts: parts that receive no gradient by configuration (a loss weight of 0).
        fixed_shapes: whether the sizes of all tensors depend only on the batch's shape, as `torch.compile` needs;
            `build_root` sets it.
    """

    kinds: tuple[str, ...] = ("text",)
    weights: Mapping[str, float]
    units: Mapping[str, Unit]
    idle_parts: frozenset[str] = frozenset()
    fixed_shapes: bool = False

    def __init__(self, config: Any, shape: DataShape) -> None:
        super().__init__()
        self.config, self.shape = config, shape
        self.fields: tuple[str, ...] = config.fields

    @abstractmethod
    def forward(self, model: Any, batch: Batch, generator: RowGenerator, *, kind: str, step: int) -> Losses:
        """Compute the losses of one micro-batch; `generator` is new for each step, with one row for each example."""

    @abstractmethod
    def generative_model(self, model: nn.Module) -> GenerativeModel:
        """Wrap the trained model for inference: sampling and scoring with the conventions of this objective."""

    def kind(self, generator: RowGenerator, *, step: int) -> str:
        """Choose the kind of a step, the same on all ranks and in all micro-batches."""
        return self.kinds[0]

    def frozen_parts(self, *, trained: bool) -> frozenset[str]:
        """Return the parts of the model to freeze; `trained` is whether the weights come from a checkpoint."""
        return frozenset()

    def expected_first_loss(self) -> Mapping[str, float]:
        """Return the value of each reported loss (sum ÷ count) at initial weights where it is known, such as log V.

        By default the NLL of equal logits under the text process, if there is one: text heads start at 0.
        """
        process = getattr(self, "process", None)
        found = None if process is None else process.initial_nll()
        return {} if found is None else {"text_nll": found}

    def attach(self, model: nn.Module) -> None:
        """Make the modules that depend on the model, such as a head on its features.

        Called once, before initial values are drawn or weights are loaded.
        """

    def set_token_counts(self, counts: Callable[[], Tensor]) -> None:
        """Take the token frequencies of the training split; `counts` reads the entire split and returns (ids,) int64.

        Called once, before training.
        """

    def set_training_length(self, steps: int) -> None:
        """Take the number of steps of the run, as its budget allows. Called once, before training."""

    def observe(self, losses: Mapping[str, tuple[float, float]], *, step: int) -> str | None:
        """Take in the (sum, count) of each loss over the global batch, after a step that was applied.

        The numbers are the same on all ranks. Returns a warning for the log, or None.
        """
        return None


class ObjectiveConfig(Protocol):
    """Configuration of an objective; `OBJECTIVES` lists them.

    A class that inherits from it defines `kind`, `capabilities` and `build`, and what differs from the defaults.
    """

    kind: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the dataset that training reads ("latents"); only their stores are opened and fingerprinted."""
        return ()

    @property
    def stores(self) -> tuple[str, ...]:
        """Stores of the dataset that the objective is made from, such as the clusters of a text process.

        Checkpoints carry copies of them."""
        return ()

    def noise_ids(self, shape: DataShape, **stores: Tensor) -> int:
        """Number of ids beyond the tokenizer's that the model reads (`DataShape.noise_ids`)."""
        return 0

    @property
    def identity(self) -> Mapping[str, Any]:
        """Options that a checkpoint and a run that loads it must share, because they define what the outputs mean."""
        return {}

    @abstractmethod
    def capabilities(self, model: Any) -> Capabilities:
        """Return what a run with this objective and this model configuration can do.

        Raises:
            ConfigurationError: the model cannot be trained with this objective.
        """

    @abstractmethod
    def build(self, shape: DataShape, **stores: Tensor) -> Objective:
        """Build the objective for data of a shape; each of `self.stores` is an argument of its name: (rows, d)."""


def require_interface(objective: Any, model: Any, *interfaces: type) -> None:
    """Raise ConfigurationError unless the model configuration has an interface that the objective trains."""
    if model.interface not in interfaces:
        named = " or ".join(interface.__name__ for interface in interfaces)
        raise ConfigurationError(
            f"parameter 'objective.kind' is {objective.kind!r}, which trains a model of interface {named}; found "
            f"'model.kind' {model.kind!r}, of interface {model.interface.__name__}. Choose a model and an objective "
            "that fit (docs/models.md)."
        )


OBJECTIVES = Kinds(
    "objective",
    {
        "multimodal": "mm_ldlm.objectives.multimodal:MultimodalConfig",
        "text_diffusion": "mm_ldlm.objectives.text_diffusion:TextDiffusionConfig",
    },
    group="objectives",
    interface=ObjectiveConfig,
)
"""Every objective that `objective.kind` can name."""
