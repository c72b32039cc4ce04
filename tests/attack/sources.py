"""Target: sources of text of every kind, ingested with rows counted against what was written."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from .column_sources import ARROW_DAMAGE, COLUMN_DAMAGE, DISK_DAMAGE, make_arrow, make_disk, make_parquet
from .folder_sources import (
    IMAGE_DAMAGE,
    LAYOUT_DAMAGE,
    PATH_DAMAGE,
    TAR_DAMAGE,
    make_images,
    make_layout,
    make_path,
    make_tar,
)
from .line_sources import CSV_DAMAGE, JSONL_DAMAGE, LINE_DAMAGE, MAX_BYTES, make_csv, make_jsonl, make_text
from .oracle import check_rows
from .vector_sources import DIM, VECTOR_DAMAGE, check_vectors, make_vectors

MAKERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "text": (make_text, LINE_DAMAGE),
    "jsonl": (make_jsonl, JSONL_DAMAGE),
    "csv": (make_csv, CSV_DAMAGE),
    "parquet": (make_parquet, COLUMN_DAMAGE),
    "arrow": (make_arrow, ARROW_DAMAGE),
    "disk": (make_disk, DISK_DAMAGE),
    "layout": (make_layout, LAYOUT_DAMAGE),
    "path": (make_path, PATH_DAMAGE),
    "images": (make_images, IMAGE_DAMAGE),
    "tar": (make_tar, TAR_DAMAGE),
    "vectors": (make_vectors, VECTOR_DAMAGE),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {"shard_rows": 3}, {"shard_rows": 2}, {"unicode_form": "NFC"},
    {"near_duplicates": {}}, {"max_bad_fraction": 0.0},
    {"max_bad_fraction": 1.0, "shard_rows": 1}, {"language_filter": "filters_of_the_case:keep"},
    {"language_filter": "filters_of_the_case:broken"}, {"language_filter": "no_such_module:f"}, {"tokens": "drop"},
    {"tokens": "split"},
)  # fmt: skip
FILTERS = "def keep(text):\n    return True\ndef broken(text):\n    raise KeyError(text)\n"


def prepare() -> Any:
    """Load what the cases need: the readers, and the tokenizer of base."""
    import datasets  # noqa: F401
    import PIL.Image  # noqa: F401

    from mm_ldlm.data.corpus import ingestion  # noqa: F401
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig, load_tokenizer

    return load_tokenizer(TokenizerConfig(max_length=8))


def generate(draw: random.Random) -> dict[str, Any]:
    kind = draw.choice(list(MAKERS))
    damage = draw.choice(MAKERS[kind][1])
    return {"kind": kind, "damage": damage, "draw": draw.randrange(2**32), "options": draw.choice(OPTIONS)}


def run(parameters: dict[str, Any], folder: Path, tokenizer: Any) -> str:
    from mm_ldlm.core.config import parse
    from mm_ldlm.data.corpus.config import IngestionConfig
    from mm_ldlm.data.corpus.ingestion import ingest
    from mm_ldlm.data.corpus.tokenizer import TokenizerConfig
    from mm_ldlm.data.store import ShardStore
    from mm_ldlm.extras.own_vectors.store import COLUMN, VectorStore

    make, _ = MAKERS[parameters["kind"]]
    (folder / "input").mkdir()
    source, written = make(parameters["damage"], random.Random(parameters["draw"]), folder / "input")
    options = {"max_bad_fraction": 1.0, "max_row_bytes": MAX_BYTES, "progress": False, **parameters["options"]}
    treatment = options.pop("tokens", "drop" if source.get("tokens") else None)
    vectors = VectorStore(DIM, folder / "vectors") if parameters["kind"] == "vectors" else None
    limits = (
        None if treatment is None else parse(TokenizerConfig, {"max_length": 8, "too_long": treatment}, at="tokenizer")
    )
    if "language_filter" in options:
        (folder / "filters_of_the_case.py").write_text(FILTERS)
        sys.path.insert(0, str(folder))
    config = parse(IngestionConfig, {"sources": [source], **options}, at="ingestion")
    workspace, quarantine = folder / "records", folder / "quarantine"
    records, refused, report = ingest(
        config, seed=0, workspace=workspace, quarantine=quarantine,
        tokenizer=None if limits is None else tokenizer, tokens=limits, side=vectors,
    )  # fmt: skip
    records.write(workspace)
    refused.write(quarantine)
    texts = ShardStore.open(workspace, "records").strings("text").take(slice(None))
    rows = len(ShardStore.open(quarantine, "quarantine"))
    if vectors is not None:
        stored = ShardStore.open(vectors.workspace, "vectors").fixed(COLUMN).take(slice(None))
        check_vectors(parameters["damage"], texts, stored)
    if parameters["options"].get("near_duplicates") is not None or limits is not None:
        written.required = set()  # near duplicates are dropped, long texts are cut
    check_rows(written, report, texts, rows)
    return "quarantine" if report["quarantined"] else "success"
