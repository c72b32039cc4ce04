"""A synthetic task in memory: texts, latents and the other fields of every model, with specs that train on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mm_ldlm.core.config import parse, parse_kind
from mm_ldlm.distributed import collectives
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.spec import TrainingSpec

STATE_DIM = 6
CLASSES = 3
TINY = DataShape(vocab_size=32, pad_id=0, mask_id=1, max_length=12, latent_dim=8, image_size=(4, 4, 1))
LATENT_DETERMINED = 64
"""Number of different examples; the others repeat them, so that a model can learn the task."""


class Examples:
    """Examples of a shape: ids from 3 on, and a random vector for each further field; row r is a function of r.

    Args:
        full: all texts have the greatest length, so that nothing is padding.
    """

    pad_id = 0

    def __init__(self, shape: DataShape, count: int, *, full: bool = False, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        own = min(count, LATENT_DETERMINED)
        self._row = np.arange(count) % own
        shortest = shape.max_length if full else 2
        self._lengths = draw.integers(shortest, shape.max_length + 1, own)
        self._ids = draw.integers(3, shape.vocab_size, (own, shape.max_length))
        self._fields = {
            "latents": draw.standard_normal((own, shape.latent_dim or 1)),
            "token_states": draw.standard_normal((own, shape.max_length, STATE_DIM)),
            "images": draw.random((own, max(shape.image_dim, 1))),
        }
        self._labels = draw.integers(0, CLASSES, (own, 1))
        self.lengths = self._lengths[self._row]

    def tokens(self, rows: Any, *, length: int) -> Any:
        kept = np.arange(length) < self.lengths[rows][:, None]
        return np.where(kept, self._ids[self._row[rows], :length], self.pad_id)

    def field(self, name: str, rows: Any) -> Any:
        """Return a field of these rows; token states are padded with 0 to the longest row, as those of a store."""
        if name == "labels":
            return self._labels[self._row[rows]]
        values = self._fields[name][self._row[rows]].astype(np.float32)
        if name != "token_states":
            return values
        length = int(self.lengths[rows].max(initial=0))
        values[np.arange(values.shape[1]) >= self.lengths[rows][:, None]] = 0.0
        return values[:, :length]


STORES = {"label_names": np.array([[ord("a") + i] for i in range(CLASSES)], np.uint8)}
"""Values of the stores that an objective can be made from"""


def data(spec: TrainingSpec, *, count: int = 64, full: bool = False) -> Data:
    """Return the data of the task for a spec, with the stores of its objective."""
    stores = {name: STORES[name] for name in spec.objective.stores}
    return Data(Examples(spec.shape, count, full=full), None, spec.shape, folders={}, stores=stores)


def spec(
    model: Mapping[str, Any],
    objective: Mapping[str, Any],
    *,
    device: str,
    shape: DataShape = TINY,
    precision: Mapping[str, Any] | None = None,
    **training: Any,
) -> TrainingSpec:
    """Return a spec of the task; `training` replaces parameters of `TrainingConfig`."""
    settings = {
        "max_steps": 10, "batch": {"examples": 16, "length_multiple": 4, "prefetch": 2},
        "optimizer": {"lr": 3e-3, "warmup_steps": 2}, "checkpoint": {"every_steps": None, "background": False},
        "log_every": 1, "diagnose_every": 0, "preflight": False, "run_name": "run", "device": device,
        "precision": dict(precision or {}),
    } | training  # fmt: skip
    made = parse_kind(OBJECTIVES, dict(objective), at="objective")
    return TrainingSpec(
        seed=7, dataset="", fingerprints={}, shape=shape, model=parse_kind(MODELS, dict(model), at="model"),
        objective=made, training=parse(TrainingConfig, settings, at="training"),
    )  # fmt: skip


MULTIMODAL = {"kind": "multimodal", "mode": "l2t"}


def tiny_mmdit(dim: int = 32, depth: int = 2) -> dict[str, Any]:
    return {"kind": "mmdit", "dim": dim, "depth": depth, "heads": 2, "latent_tokens": 2}


class Recorder:
    """Tracker that keeps the metrics and events in memory."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        self.lines.append({"step": step, **values})

    def event(self, step: int, kind: str, **words: Any) -> None:
        self.events.append({"step": step, "event": kind, **words})

    def close(self) -> None:
        return None

    def losses(self) -> list[float]:
        return [float(line["loss"]) for line in self.lines]


class Faulty:
    """An objective with a fault at one step of one rank: `nan`, `overflow` or `kill`.

    `overflow` makes the gradients infinite, as a loss scale that is too large does; `kill` ends the process by SIGKILL.
    """

    def __init__(self, inner: Any, *, kind: str, step: int, rank: int = 0) -> None:
        self.inner, self.fault, self.step, self.rank = inner, kind, step, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, model: Any, batch: Any, generator: Any, *, kind: str, step: int) -> Any:
        losses = self.inner(model, batch, generator, kind=kind, step=step)
        if step != self.step or collectives.rank() != self.rank:
            return losses
        if self.fault == "kill":
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        name = next(name for name in losses if name in self.inner.weights)
        value, count = losses[name]
        if self.fault == "nan":
            value = value * torch.nan
        else:
            value = value.clone()
            value.register_hook(lambda gradient: gradient * torch.inf)
        return {**losses, name: (value, count)}


def largest_difference(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference of tensors of the same names; 0.0 means equal bits, infinity other names."""
    if set(a) != set(b) or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    unequal = [name for name in a if not torch.equal(a[name], b[name])]
    found = [float((a[name].double() - b[name].double()).abs().max()) for name in unequal]
    return max((x if x == x and x > 0 else float("inf") for x in found), default=0.0)


def replace_training(given: TrainingSpec, **training: Any) -> TrainingSpec:
    """Return the spec with other parameters of training."""
    return dataclasses.replace(given, training=dataclasses.replace(given.training, **training))
