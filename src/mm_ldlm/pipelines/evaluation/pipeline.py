"""The graph of `evaluation`: five parts that do not need one another."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.evaluation import nodes

DATA = ["records", "tokens", "latents", "index"]
PARAMETERS = ["params:evaluation", "params:seed"]


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.evaluate_inversion,
                inputs=["run", "runs", "samples_l2t", *DATA, *PARAMETERS],
                outputs=["inversion_rows", "metrics_inversion"],
                name="evaluate_inversion",
            ),
            node(nodes.evaluate_sts, inputs=["run", "runs", *PARAMETERS], outputs="metrics_sts", name="evaluate_sts"),
            node(
                nodes.evaluate_likelihood,
                inputs=["run", "runs", *DATA, *PARAMETERS],
                outputs="metrics_likelihood",
                name="evaluate_likelihood",
            ),
            node(
                nodes.evaluate_latents,
                inputs=["run", "runs", "samples_t2l", "samples_unconditional", *DATA, *PARAMETERS],
                outputs="metrics_latents",
                name="evaluate_latents",
            ),
            node(
                nodes.evaluate_generation,
                inputs=["run", "runs", "samples_unconditional", *DATA, *PARAMETERS],
                outputs="metrics_generation",
                name="evaluate_generation",
            ),
        ],
        tags="evaluation",
    )
