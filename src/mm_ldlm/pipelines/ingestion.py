"""`ingestion`: sources → records, quarantine, tokenizer, tokens, report. The work is done in `mm_ldlm.data.corpus`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

from mm_ldlm.data.corpus.tokens import build_tokenizer, ingestion_report, tokenize_records

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
    from mm_ldlm.data.encoders import EncoderConfig
    from mm_ldlm.data.store import Manifest


def prepare_records(
    ingestion: IngestionConfig,
    tokenizer: TokenizerConfig,
    encoder: EncoderConfig,
    seed: int,
    records_workspace: Path,
    quarantine_workspace: Path,
) -> tuple[Manifest, Manifest, dict[str, Any]]:
    """Read the sources; return the records, the quarantine, and a report on every row.

    The vectors that the sources contain become a store below the records.
    """
    from mm_ldlm.data.corpus.ingestion import ingest
    from mm_ldlm.data.corpus.wrapping import ingest_wrapped
    from mm_ldlm.data.encoders.base import side_store

    side = side_store(encoder, records_workspace)
    if tokenizer.wrap is not None:
        return ingest_wrapped(
            ingestion, tokenizer, seed=seed, workspace=records_workspace, quarantine=quarantine_workspace, side=side
        )
    return ingest(
        ingestion, seed=seed, workspace=records_workspace, quarantine=quarantine_workspace,
        tokens=tokenizer, side=side,
    )  # fmt: skip


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                prepare_records,
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
                build_tokenizer,
                inputs=["records", "params:tokenizer"],
                outputs="tokenizer_files",
                name="make_tokenizer",
            ),
            node(
                tokenize_records,
                inputs=[
                    "records",
                    "tokenizer_files",
                    "params:tokenizer",
                    "params:tokens_workspace",
                ],
                outputs="tokens",
                name="make_tokens",
            ),
            node(
                ingestion_report,
                inputs=["preparation_report", "tokens"],
                outputs="ingestion_report",
                name="report_ingestion",
            ),
        ],
        tags="ingestion",
        namespace="ingestion",
        prefix_datasets_with_namespace=False,
    )
