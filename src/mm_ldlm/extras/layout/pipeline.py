"""`export`: the data in the older folder layout."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.pipeline import Pipeline, node

if TYPE_CHECKING:
    from mm_ldlm.data.corpus.tokenizer import TextTokenizer
    from mm_ldlm.data.latents.store import LatentStore
    from mm_ldlm.data.store import ShardStore
    from mm_ldlm.extras.layout.export import ExportConfig

log = logging.getLogger(__name__)


def export_layout(
    records: ShardStore,
    latents: LatentStore | None,
    tokenizer: TextTokenizer,
    export: ExportConfig,
    layout_workspace: Path,
) -> dict[str, Any]:
    """Write the layout to `export.path`, or to the folder of the catalog; return its place and its rows per split."""
    from mm_ldlm.extras.layout.export import write_layout

    place = Path(export.path or layout_workspace)
    counts = write_layout(place, records, tokenizer=tokenizer, latents=latents)
    log.info(
        "exported %d rows %s latents to %s: %s", sum(counts.values()), "with" if latents is not None else "without",
        place, ", ".join(f"{count} {split}" for split, count in counts.items()),
    )  # fmt: skip
    return {"path": str(place), "rows": counts, "latents": latents is not None}


def create_pipeline() -> Pipeline:
    return Pipeline(
        [
            node(
                export_layout,
                inputs=["records", "latents", "tokenizer_files", "params:export", "layout_workspace"],
                outputs="export_report",
                name="export_layout",
            ),
        ],
        tags="export",
        namespace="export",
        prefix_datasets_with_namespace=False,
    )
