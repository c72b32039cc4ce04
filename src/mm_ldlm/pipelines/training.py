"""`training`: a plan (parameters and fingerprints → one spec), then the run (spec → run reference).

The work is done in `mm_ldlm.training`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
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
    from mm_ldlm.training.spec import plan

    return plan(
        dataset, runs=runs, model=model, objective=objective, training=training, encoder=encoder, seed=seed
    ).to_dict()


def run_training(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    """Train in worker processes unless the run is finished; return the reference of the run."""
    from mm_ldlm.training.session import run_session

    return run_session(spec, runs)


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                plan_training,
                inputs=[
                    "dataset",
                    "runs",
                    "params:model",
                    "params:objective",
                    "params:training",
                    "params:encoder",
                    "params:seed",
                ],
                outputs="training_spec",
                name="plan_training",
            ),
            node(run_training, inputs=["training_spec", "runs"], outputs="run", name="run_training"),
        ],
        tags="training",
        namespace="training",
        prefix_datasets_with_namespace=False,
    )
