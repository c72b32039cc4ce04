"""Nodes of `training`: make a spec from parameters and dataset, and train it as a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset
    from mm_ldlm.data.encoders import EncoderConfig
    from mm_ldlm.models.base import ModelConfig
    from mm_ldlm.objectives.base import ObjectiveConfig
    from mm_ldlm.training.config import TrainingConfig


def plan_training(
    dataset: Dataset,
    runs: Path,
    model: ModelConfig,
    objective: ObjectiveConfig,
    training: TrainingConfig,
    encoder: EncoderConfig,
    seed: int,
) -> dict[str, Any]:
    """Make the spec: parameters and fingerprints in one JSON document, the only one that a worker reads."""
    from mm_ldlm.training.plan import plan

    return plan(
        dataset, runs=runs, model=model, objective=objective, training=training, encoder=encoder, seed=seed
    ).to_dict()


def run_training(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train in worker processes unless the run is finished; return the reference of the run."""
    from mm_ldlm.training.session import run_session

    return run_session(spec, runs)
