"""Pipeline `sanity`: run the checks, and raise an error if one of them failed."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    from mm_ldlm.data.dataset_manifest import Dataset
    from mm_ldlm.data.encoders import EncoderConfig
    from mm_ldlm.extras.sanity.checks import SanityConfig
    from mm_ldlm.models.base import ModelConfig
    from mm_ldlm.objectives.base import ObjectiveConfig
    from mm_ldlm.pipelines.sampling.config import SamplingConfig
    from mm_ldlm.training.config import TrainingConfig

log = logging.getLogger(__name__)


def check_configuration(
    dataset: "Dataset",
    runs: Path,
    model: "ModelConfig",
    objective: "ObjectiveConfig",
    training: "TrainingConfig",
    encoder: "EncoderConfig",
    seed: int,
    sanity: "SanityConfig",
    sampling: "SamplingConfig",
) -> list[dict[str, Any]]:
    """Run the checks; return a table of name, finding and remedy (empty if the check passed)."""
    import dataclasses

    from mm_ldlm.extras.sanity.checks import check_sanity
    from mm_ldlm.training.spec import plan

    spec = plan(dataset, runs=runs, model=model, objective=objective, training=training, encoder=encoder, seed=seed)
    samplers = {"l2t": sampling.text, "unconditional": sampling.unconditional.text}
    checks = check_sanity(spec, root=runs, config=sanity, samplers=samplers)
    log.info("sanity checks of this configuration:\n%s", "\n".join(map(str, checks)))
    return [dataclasses.asdict(check) for check in checks]


def judge_configuration(report: list[dict[str, Any]]) -> None:
    """Raise PreflightError with the failed checks; the table is saved before."""
    from mm_ldlm.core import PreflightError
    from mm_ldlm.extras.sanity.preflight import Check

    if failing := [Check(**line) for line in report if line["remedy"]]:
        raise PreflightError(
            f"{len(failing)} sanity checks of the configuration failed:\n" + "\n".join(str(check) for check in failing)
        )


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                check_configuration,
                inputs=[
                    "dataset",
                    "runs",
                    "params:model",
                    "params:objective",
                    "params:training",
                    "params:encoder",
                    "params:seed",
                    "params:sanity",
                    "params:sampling",
                ],
                outputs="sanity_report",
                name="check_configuration",
            ),
            node(judge_configuration, inputs="sanity_report", outputs=None, name="judge_configuration"),
        ],
        tags="sanity",
        namespace="sanity",
        prefix_datasets_with_namespace=False,
    )
