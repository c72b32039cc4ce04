"""The graph of `validation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from mm_ldlm.pipelines.validation import nodes


def create_pipeline() -> Pipeline:
    return pipeline(
        [
            node(
                nodes.validate_data,
                inputs=[
                    "records",
                    "tokens",
                    "latents",
                    "tokenizer_files",
                    "params:encoder",
                    "params:embedding",
                    "params:validation",
                    "params:model",
                    "params:evaluation",
                    "params:seed",
                    "quarantine_validation_workspace",
                ],
                outputs=[
                    "validation_report",
                    "quarantine_validation",
                    "plot_norms",
                    "plot_spectrum",
                    "plot_lengths",
                    "plot_neighbours",
                ],
                name="validate_data",
            ),
            node(
                nodes.enforce_contracts,
                inputs="validation_report",
                outputs="contracts_hold",
                name="enforce_contracts",
            ),
            node(
                nodes.index_valid_rows,
                inputs=["records", "tokens", "latents", "quarantine_validation", "contracts_hold", "index_workspace"],
                outputs="index",
                name="index_valid_rows",
            ),
            node(
                nodes.fit_normaliser,
                inputs=["latents", "index", "params:normaliser"],
                outputs="normaliser",
                name="fit_normaliser",
            ),
        ],
        tags="validation",
    )
