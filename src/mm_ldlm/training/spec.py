"""Training spec: one JSON file with everything that a worker needs, planned by the pipeline and read by every rank.

Its paths are relative to the folder that contains it (the folder of all runs), so that it can be moved with its data.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mm_ldlm.core import ConfigurationError, parse, parse_kind, to_dict
from mm_ldlm.core.files import InputFile
from mm_ldlm.data.store.fingerprint import fingerprint
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS
from mm_ldlm.objectives.registry import OBJECTIVES
from mm_ldlm.training.config import TrainingConfig

FORMAT_VERSION = 3
# Parameters that two sessions of one run may set differently, and those that the plan resolves into others: epochs and
# max_tokens into max_steps, and seed into the spec's own.
_FREE = frozenset(
    {"launch", "resume", "run_name", "log_every", "diagnose_every", "preflight", "threads",
     "collective_timeout_minutes", "device", "checkpoint", "max_minutes", "max_tokens", "epochs", "parallel", "seed",
     "parameter_gradients", "show_every_seconds"}
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Specification of a training run.

    Attributes:
        dataset: folder of the validated dataset.
        fingerprints: fingerprints of the stores that training reads, of the tokenizer, and of the encoder if there are
            latents.
        shape: sizes that the model is built for: vocabulary, ids of the noise, longest text, dimension of a latent.
        model, objective: configurations of their kinds (`models.registry`, `objectives.registry`).
        encoder: parameters of the encoder that made the latents; empty for a dataset without latents.
    """

    seed: int
    dataset: str
    fingerprints: dict[str, str]
    shape: DataShape
    model: Any
    objective: Any
    training: TrainingConfig
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the result: data, parameters and seed, but not the machines."""
        training = {key: value for key, value in to_dict(self.training).items() if key not in _FREE}
        training["batch"].pop("prefetch")
        parts = {"model": to_dict(self.model), "objective": to_dict(self.objective), "training": training}
        return fingerprint({"seed": self.seed, "fingerprints": self.fingerprints, **parts})

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.training.run_name or f"run-{self.fingerprint[:12]}"

    def to_dict(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, "name": self.name, **to_dict(self)}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> TrainingSpec:
        """Read a spec from plain JSON.

        Raises:
            ConfigurationError: the format differs, or a field is missing, unknown or invalid.
        """
        version = found.get("format_version") if isinstance(found, dict) else None
        if version != FORMAT_VERSION:
            raise ConfigurationError(
                f"training spec: expected format {FORMAT_VERSION}, found {version!r}. Plan the training again "
                "(`kedro run --pipelines=training`)."
            )
        try:
            return cls(
                seed=int(found["seed"]),
                dataset=str(found["dataset"]),
                fingerprints=dict(found["fingerprints"]),
                shape=parse(DataShape, found["shape"], at="shape"),
                model=parse_kind(MODELS, found["model"], at="model"),
                objective=parse_kind(OBJECTIVES, found["objective"], at="objective"),
                training=parse(TrainingConfig, found["training"], at="training"),
                encoder=dict(found.get("encoder") or {}),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"training spec: field missing, unknown or of another type ({error}). Plan it again."
            ) from None

    @classmethod
    def read(cls, path: Path) -> TrainingSpec:
        """Read the file of a spec."""
        remedy = "Write it by `kedro run --to-nodes=plan_training`."
        return cls.from_dict(InputFile(path, error=ConfigurationError, remedy=remedy).json(dict))
