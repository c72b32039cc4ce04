"""Nodes of `training`: make a spec from parameters and dataset, and train it as a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_ldlm.data import Dataset

Parameters = Any  # a section of the parameters, parsed by the hook


def plan_training(
    dataset: Dataset,
    runs: Path,
    model: Parameters,
    objective: Parameters,
    training: Parameters,
    encoder: Parameters,
    seed: int,
    tracking: dict[str, Any],
) -> dict[str, Any]:
    """Make the spec: parameters and fingerprints in one JSON document, the only one that a worker reads."""
    from mm_ldlm.training.plan import plan

    return plan(
        dataset,
        runs=runs,
        model=model,
        objective=objective,
        training=training,
        encoder=encoder,
        seed=seed,
        tracking=tracking,
    ).to_dict()


def run_training(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train in worker processes unless the run is finished; return the reference of the run."""
    from mm_ldlm.training.session import run_session

    return run_session(spec, runs)
