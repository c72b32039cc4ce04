"""The graph of `validation`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.data.features import sections
from mm_ldlm.pipelines.validation import nodes


def create_pipeline() -> Pipeline:
    parameters = {section: f"params:{section}" for section in sections()}
    stores = {name: name for name in ("records", "tokens", "latents", "features")}
    return Pipeline(
        [
            node(
                nodes.validate_data,
                inputs={
                    **stores,
                    "tokenizer": "tokenizer_files",
                    "validation": "params:validation",
                    "evaluation": "params:evaluation",
                    "workspace": "params:quarantine_validation_workspace",
                    **parameters,
                    "encoder": "params:encoder",
                    "seed": "params:seed",
                },
                outputs={
                    "report": "validation_report",
                    "quarantine": "quarantine_validation",
                    **{name: f"plot_{name}" for name in nodes.PLOTS},
                },
                name="validate_data",
            ),
            node(
                nodes.index_valid_examples,
                inputs=[
                    "validation_report",
                    "records",
                    "tokens",
                    "latents",
                    "quarantine_validation",
                    "params:objective",
                    "params:index_workspace",
                ],
                outputs="index",
                name="index_valid_examples",
            ),
            node(
                nodes.fit_normalisers,
                inputs={name: name for name in ("tokens", "latents", "features", "index")} | parameters,
                outputs="normalisers",
                name="fit_normalisers",
            ),
            node(
                nodes.commit_dataset,
                inputs={
                    **stores,
                    "index": "index",
                    "tokenizer": "tokenizer_files",
                    "normalisers": "normalisers",
                    **parameters,
                },
                outputs="dataset",
                name="commit_dataset",
            ),
        ],
        tags="validation",
        namespace="validation",
        prefix_datasets_with_namespace=False,
    )
