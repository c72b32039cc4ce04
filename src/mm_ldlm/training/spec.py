"""The training spec: one JSON that says everything a worker needs. Written by the pipeline, read by every rank.

Paths in it are relative to the folder that it lies in (the folder of all runs), so that it may be moved with its data.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from mm_ldlm.config import parse, to_dict
from mm_ldlm.errors import ConfigurationError
from mm_ldlm.models.parameters import ModelConfig
from mm_ldlm.objectives.multimodal import ObjectiveConfig
from mm_ldlm.store.fingerprint import fingerprint
from mm_ldlm.training.config import TrainingConfig

FORMAT_VERSION = 1
# What may differ between two sessions of one run without making it another run.
_FREE = frozenset(
    {"launch", "resume", "run_name", "log_every", "diagnose_every", "preflight", "threads",
     "collective_timeout_minutes", "device", "checkpoint", "max_minutes", "parallel"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Paths:
    """Folders, relative to the spec's own folder or absolute."""

    tokens: str
    latents: str
    index: str
    tokenizer: str
    normaliser: str
    token_vectors: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """See the module. `fingerprints` are those of the stores (by the names in `Paths`) and of the encoder."""

    seed: int
    paths: Paths
    fingerprints: dict[str, str]
    model: ModelConfig
    objective: ObjectiveConfig
    training: TrainingConfig
    encoder: dict[str, Any]
    tracking: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Digest of what makes the run what it is: data, parameters, seed; not where and how often it is run."""
        training = {key: value for key, value in to_dict(self.training).items() if key not in _FREE}
        training["batch"] = {key: value for key, value in training["batch"].items() if key != "prefetch"}
        return fingerprint(
            {"seed": self.seed, "fingerprints": self.fingerprints, "model": self.model, "objective": self.objective,
             "training": training}
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.training.run_name or f"run-{self.fingerprint[:12]}"

    def to_dict(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, "name": self.name, **to_dict(self)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> TrainingSpec:
        """Raises ConfigurationError when the spec is of another format or a field does not fit."""
        version = found.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigurationError(
                f"training spec: format {version!r}, this program reads {FORMAT_VERSION}. Plan it again."
            )
        try:
            return cls(
                seed=int(found["seed"]),
                paths=Paths(**found["paths"]),
                fingerprints=dict(found["fingerprints"]),
                model=parse(ModelConfig, found["model"], at="model"),
                objective=parse(ObjectiveConfig, found["objective"], at="objective"),
                training=parse(TrainingConfig, found["training"], at="training"),
                encoder=dict(found["encoder"]),
                tracking=dict(found.get("tracking") or {}),
            )
        except (KeyError, TypeError) as error:
            raise ConfigurationError(f"training spec: field missing or unknown ({error}). Plan it again.") from None

    @classmethod
    def read(cls, path: Path) -> TrainingSpec:
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise ConfigurationError(
                f"{path}: no such spec. Write one by `kedro run --to-nodes=plan_training`."
            ) from None
        except ValueError as error:
            raise ConfigurationError(f"{path}: not readable as JSON ({error}).") from None
