"""Nodes of `ingestion`: sources become records, records become tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_ldlm.core.config import parse
from mm_ldlm.data.store import NOT_NEEDED, Manifest, NotNeeded

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.store import ShardStore

Parameters = Any  # a section of the parameters, parsed by the hook


def prepare_records(
    ingestion: Parameters,
    tokenizer: Parameters,
    encoder: Parameters,
    seed: int,
    records_workspace: Path,
    quarantine_workspace: Path,
    vectors_workspace: Path,
) -> tuple[Manifest, Manifest, Manifest | NotNeeded, dict[str, Any]]:
    """Read the sources; return the records, the quarantine, the vectors of the sources, and a report on every row."""
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.ingestion import ingest
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer
    from mm_ldlm.data.encoders import given_dim, parse_encoder
    from mm_ldlm.extras.own_vectors.store import VectorStore

    limits = parse(TokenizerConfig, tokenizer, at="tokenizer")
    dim = given_dim(parse_encoder(encoder))
    records, quarantine, report = ingest(
        parse(IngestionConfig, ingestion, at="ingestion"),
        seed=seed,
        workspace=records_workspace,
        quarantine=quarantine_workspace,
        tokenizer=load_tokenizer(limits),
        tokens=limits,
        vectors=None if dim is None else VectorStore(dim, vectors_workspace),
    )
    return records, quarantine, NOT_NEEDED if dim is None else Manifest.read(vectors_workspace), report


def make_tokenizer(records: ShardStore, tokenizer: Parameters) -> TextTokenizer:
    """Make the tokenizer of the parameters; with `reduce_vocabulary`, only with the tokens of the training texts."""
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
    from mm_ldlm.data.corpus.tokens import build_tokenizer

    return build_tokenizer(records, parse(TokenizerConfig, tokenizer, at="tokenizer"))


def make_tokens(
    records: ShardStore, files: TextTokenizer, ingestion: Parameters, tokenizer: Parameters, tokens_workspace: Path
) -> Manifest:
    """Tokenise every record, in order."""
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
    from mm_ldlm.data.corpus.tokens import tokenize_records

    config = parse(TokenizerConfig, tokenizer, at="tokenizer")
    return tokenize_records(records, files, config, tokens_workspace, progress=ingestion.progress)


def report_ingestion(preparation: dict[str, Any], tokens: ShardStore) -> dict[str, Any]:
    """Report the outcome of all rows; raise ValidationError if the counts do not add up."""
    from mm_ldlm.data.corpus.report import ingestion_report

    return ingestion_report(preparation, tokens.manifest)
