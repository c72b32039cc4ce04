"""The graph of `evaluation`: one model, and suites that do not depend on one another."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.evaluation import nodes

PARAMETERS = ["params:evaluation", "params:seed"]


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.load_model,
                inputs=["run", "runs", "dataset", "params:evaluation"],
                outputs="evaluation_model",
                name="load_model",
            ),
            node(
                nodes.evaluate_inversion,
                inputs=["evaluation_model", "dataset", "samples_l2t", *PARAMETERS],
                outputs=["inversion_rows", "metrics_inversion"],
                name="evaluate_inversion",
            ),
            node(
                nodes.evaluate_sts,
                inputs=["evaluation_model", *PARAMETERS],
                outputs="metrics_sts",
                name="evaluate_sts",
            ),
            node(
                nodes.evaluate_likelihood,
                inputs=["evaluation_model", "dataset", *PARAMETERS],
                outputs=["likelihood_rows", "metrics_likelihood"],
                name="evaluate_likelihood",
            ),
            node(
                nodes.evaluate_latents,
                inputs=["evaluation_model", "dataset", "samples_t2l", "samples_unconditional", *PARAMETERS],
                outputs="metrics_latents",
                name="evaluate_latents",
            ),
            node(
                nodes.evaluate_generation,
                inputs=["evaluation_model", "dataset", "samples_unconditional", *PARAMETERS],
                outputs="metrics_generation",
                name="evaluate_generation",
            ),
            node(
                nodes.evaluate_classification,
                inputs=["evaluation_model", "dataset", *PARAMETERS],
                outputs="metrics_classification",
                name="evaluate_classification",
            ),
            node(
                nodes.evaluate_images,
                inputs=[
                    "evaluation_model",
                    "dataset",
                    "samples_caption_to_image",
                    "samples_image_to_caption",
                    "samples_image_text",
                    *PARAMETERS,
                ],
                outputs="metrics_images",
                name="evaluate_images",
            ),
        ],
        tags="evaluation",
        namespace="evaluation",
        prefix_datasets_with_namespace=False,
    )
