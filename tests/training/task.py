"""A tiny task in memory for every kind of objective, and short trainings on it.

A family whose kind of objective needs other data than tokens and vectors says so in `tests/families/NAME/tiny.py`, as
`EXAMPLES = {kind: Example(...)}`.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.training.faults import KIND
from torch import Tensor

from mm_ldlm.core import ConfigurationError, parse, parse_kind
from mm_ldlm.distributed.device import choose_device
from mm_ldlm.distributed.process import Process
from mm_ldlm.models.base import MODELS, DataShape
from mm_ldlm.objectives.base import OBJECTIVES
from mm_ldlm.training import loop
from mm_ldlm.training.build import build
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.config import TrainingConfig
from mm_ldlm.training.data import Data
from mm_ldlm.training.jsonl import Tracker
from mm_ldlm.training.spec import TrainingSpec

SHAPE = DataShape(vocab_size=24, pad_id=2, mask_id=1, max_length=12, fields={"latents": (8,)})
SIZE = {"dim": 16, "depth": 2, "heads": 2, "latent_tokens": 2, "token_vectors": "random"}
"""Options of a tiny model, as far as its kind has them"""
ALONE = Process()
Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""(generator, lengths (N,)) → values of a field (N, …)"""


@dataclasses.dataclass(frozen=True)
class Example:
    """What a kind of objective is trained on.

    Attributes:
        objective, model: their options, without the kind of the objective; no model is the first that fits.
        shape: shape of the value of an example by the name of its field, or of a token where each has one.
        fields: how the values of a field are drawn; others are normal numbers of their shape.
        stores: values of the stores that the objective is made from.
    """

    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shape: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, Draw] = dataclasses.field(default_factory=dict)
    stores: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


EXAMPLES: dict[str, Example] = {}
for _file in sorted(Path(__file__).parents[1].glob("families/*/tiny.py")):
    EXAMPLES |= importlib.import_module(f"tests.families.{_file.parent.name}.tiny").EXAMPLES


class Examples:
    """Texts of random ids and values of the other fields; row r is a function of r."""

    def __init__(self, shape: DataShape, example: Example, count: int, *, full: bool = False) -> None:
        draw = np.random.default_rng(0)
        self.pad_id = shape.pad_id
        self.lengths = np.full(count, shape.max_length) if full else draw.integers(2, shape.max_length + 1, count)
        ids = draw.integers(3, shape.vocab_size, (count, shape.max_length))
        self._ids = np.where(np.isin(ids, shape.word_ids), ids, shape.word_ids[-1])
        drawn = {name: make(draw, self.lengths) for name, make in example.fields.items()}
        usual = {
            name: draw.standard_normal((count, math.prod(size))).astype(np.float32)
            for name, size in shape.fields.items()
        }
        self.fields = usual | drawn

    def tokens(self, rows: Any, *, length: int) -> Any:
        kept = np.arange(length) < self.lengths[rows][:, None]
        return np.where(kept, self._ids[rows][:, :length], self.pad_id)

    def field(self, name: str, rows: Any) -> Any:
        return self.fields[name][rows]


def data(spec: TrainingSpec, *, count: int = 48, full: bool = False, **folders: Path) -> Data:
    """Return data of the task for a spec; the validation data are those of the training."""
    example = EXAMPLES.get(spec.objective.kind, Example())
    source = Examples(spec.shape, example, count, full=full)
    return Data(source, source, spec.shape, folders=folders, stores=dict(example.stores))


def spec(
    objective: str | Mapping[str, Any] = KIND, *, model: Mapping[str, Any] | None = None, shape: DataShape = SHAPE,
    **training: Any,
) -> TrainingSpec:  # fmt: skip
    """Return a spec of ten steps; `training` replaces parameters of training, and merges its sections."""
    options = {"kind": objective} if isinstance(objective, str) else dict(objective)
    example = EXAMPLES.get(options["kind"], Example())
    chosen = parse_kind(OBJECTIVES, {**example.objective, **options}, at="objective")
    fields = {**shape.fields, **example.shape}
    stores = {name: torch.from_numpy(values) for name, values in example.stores.items()}
    shape = dataclasses.replace(shape, fields={name: fields[name] for name in fields if name in chosen.fields})
    shape = dataclasses.replace(shape, noise_ids=chosen.noise_ids(shape, **stores))
    settings: dict[str, Any] = {
        "max_steps": 10, "batch": {"examples": 16, "length_multiple": 4, "prefetch": 2},
        "optimizer": {"lr": 3e-3, "warmup_steps": 2}, "checkpoint": {"every_steps": None, "background": False},
        "precision": {}, "ema": {}, "guard": {}, "launch": {}, "log_every": 1, "diagnose_every": 0,
        "preflight": False, "run_name": "run", "device": "cpu", "show_every_seconds": None,
    }  # fmt: skip
    for key, value in training.items():
        settings[key] = {**settings[key], **value} if isinstance(settings.get(key), dict) else value
    return TrainingSpec(
        seed=7, dataset="", fingerprints={}, shape=shape, objective=chosen,
        model=partner(chosen, {**example.model, **(model or {})}),
        training=parse(TrainingConfig, settings, at="training"),
    )  # fmt: skip


def partner(objective: Any, options: Mapping[str, Any]) -> Any:
    """Return a tiny model that an objective can train: of the kind in `options`, or the first of the registry."""
    for kind in [options["kind"]] if "kind" in options else MODELS:
        has = {field.name for field in dataclasses.fields(MODELS.find(kind, at="model"))}
        small = {name: value for name, value in SIZE.items() if name in has}
        model = parse_kind(MODELS, {**small, **options, "kind": kind}, at="model")
        try:
            objective.capabilities(model)
            return model
        except ConfigurationError:
            if "kind" in options:
                raise
    raise AssertionError(f"no model for {objective.kind}")


class Recorder(Tracker):
    """Keeps the metrics and events in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        self.lines.append({"step": step, **values})

    def event(self, step: int, kind: str, **words: Any) -> None:
        self.events.append({"step": step, "event": kind, **words})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def built(spec: TrainingSpec, root: Path, *, data: Data | None = None) -> loop.Run:
    """Build a run of the task in this process; its tracker is a `Recorder`."""
    process = dataclasses.replace(ALONE, device=choose_device(spec.training.device))
    given = data or globals()["data"](spec)
    return build(spec, root=root, data=given, process=process, tracker=Recorder())


def train_until(run: loop.Run, step: int) -> loop.Ending:
    """Train until this step, with a checkpoint there."""
    run.stop_requested = lambda: run.learner.state.step + 1 >= step
    return loop.train(run)


def held(run: loop.Run) -> dict[str, Tensor]:
    """Copy everything that a checkpoint contains."""
    return {f"{file}/{name}": value.detach().to("cpu", copy=True)
            for file, tensors in run.learner.tensors().items() for name, value in tensors.items()}  # fmt: skip


def saved(root: Path, step: int, *, name: str = "run") -> dict[str, Tensor]:
    """Read the tensors of a checkpoint."""
    path = folder.find(root / name, which=str(step))
    files = [file.name for file in path.glob("*.safetensors")]
    return {f"{file}/{key}": value for file in files for key, value in folder.tensors(path, file).items()}


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return the largest difference of tensors of the same names; 0 means equal bits, infinity other names or NaN."""
    if a.keys() != b.keys():
        return float("inf")
    unequal = [(a[name].double() - b[name].double()).abs().max() for name in a if not torch.equal(a[name], b[name])]
    return max([float(torch.nan_to_num(each, nan=torch.inf)) or float("inf") for each in unequal], default=0.0)
