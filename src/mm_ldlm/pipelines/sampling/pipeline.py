"""The graph of `sampling`: four nodes that need a run, and not one another."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.sampling import nodes

RUN = ["run", "runs"]
PARAMETERS = ["params:sampling", "params:seed"]


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.sample_l2t,
                inputs=[*RUN, "records", "tokens", "latents", "index", *PARAMETERS],
                outputs="samples_l2t",
                name="sample_l2t",
            ),
            node(
                nodes.sample_t2l,
                inputs=[*RUN, "records", "tokens", "latents", "index", *PARAMETERS],
                outputs="samples_t2l",
                name="sample_t2l",
            ),
            node(
                nodes.sample_unconditional,
                inputs=[*RUN, "records", "latents", "index", *PARAMETERS],
                outputs="samples_unconditional",
                name="sample_unconditional",
            ),
            node(
                nodes.sample_uses,
                inputs=[*RUN, *PARAMETERS],
                outputs=["samples_infill", "samples_edit", "samples_interpolate"],
                name="sample_uses",
            ),
        ],
        tags="sampling",
    )
