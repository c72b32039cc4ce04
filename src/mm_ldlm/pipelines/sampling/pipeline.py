"""The graph of `sampling`: one model, and tasks that do not depend on one another."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.sampling import nodes

PARAMETERS = ["params:sampling", "params:seed"]


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.load_model,
                inputs=["run", "runs", "dataset", "params:sampling"],
                outputs="sampling_model",
                name="load_model",
            ),
            node(
                nodes.sample_l2t,
                inputs=["sampling_model", "dataset", *PARAMETERS],
                outputs="samples_l2t",
                name="sample_l2t",
            ),
            node(
                nodes.sample_t2l,
                inputs=["sampling_model", "dataset", *PARAMETERS],
                outputs="samples_t2l",
                name="sample_t2l",
            ),
            node(
                nodes.sample_unconditional,
                inputs=["sampling_model", "dataset", *PARAMETERS],
                outputs="samples_unconditional",
                name="sample_unconditional",
            ),
            node(
                nodes.edit_texts,
                inputs=["sampling_model", *PARAMETERS],
                outputs=["samples_infill", "samples_edit", "samples_interpolate"],
                name="edit_texts",
            ),
            node(
                nodes.sample_images,
                inputs=["sampling_model", "dataset", *PARAMETERS],
                outputs=["samples_caption_to_image", "samples_image_to_caption", "samples_image_text"],
                name="sample_images",
            ),
        ],
        tags="sampling",
        namespace="sampling",
        prefix_datasets_with_namespace=False,
    )
