"""The graph of `ingestion`."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mm_ldlm.pipelines.ingestion import nodes


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                nodes.prepare_records,
                inputs=[
                    "params:ingestion",
                    "params:tokenizer",
                    "params:encoder",
                    "params:seed",
                    "params:records_workspace",
                    "params:quarantine_ingestion_workspace",
                ],
                outputs=["records", "quarantine_ingestion", "preparation_report"],
                name="prepare_records",
            ),
            node(
                nodes.make_tokenizer,
                inputs=["records", "params:tokenizer"],
                outputs="tokenizer_files",
                name="make_tokenizer",
            ),
            node(
                nodes.make_tokens,
                inputs=[
                    "records",
                    "tokenizer_files",
                    "params:ingestion",
                    "params:tokenizer",
                    "params:tokens_workspace",
                ],
                outputs="tokens",
                name="make_tokens",
            ),
            node(
                nodes.report_ingestion,
                inputs=["preparation_report", "tokens"],
                outputs="ingestion_report",
                name="report_ingestion",
            ),
        ],
        tags="ingestion",
        namespace="ingestion",
        prefix_datasets_with_namespace=False,
    )
