"""The model card of an exported run, written from its own files."""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import pandas as pd
import pyarrow as pa

from mm_ldlm.core import MMLDLMError
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.dataset_manifest import Dataset
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.evaluation.compare import Result, load_result
from mm_ldlm.evaluation.report.page import spelled
from mm_ldlm.evaluation.suites import PARTS, headlines
from mm_ldlm.evaluation.suites.inversion import summarise
from mm_ldlm.inference.exporting import Source
from mm_ldlm.inference.loading import calibration_of, kinds_of
from mm_ldlm.objectives.capabilities import USES
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.provenance import MADE_BY, weights_in, weights_of

BY_SOURCE = {
    "exact_match_as_written": "fraction", "exact_match_up_to_case": "fraction", "bleu_as_written": "points",
    "cosine": "cosine",
}  # fmt: skip
"""Metrics of the reconstructions of one source, and their formats"""


def card(source: Source, *, name: str, licence: str, notes: str, embeds: bool) -> str:
    """Write the card: what the model can do, its data, encoder, size and scores, and the commands that load it.

    Args:
        notes: Markdown that follows the scores.
        embeds: whether SentenceTransformer can load the encoder of the folder.
    """
    from huggingface_hub import ModelCardData
    from jinja2 import StrictUndefined, Template

    (model, objective), result = kinds_of(source.config), _result(source)
    capabilities = objective.capabilities(model)
    template = Template(
        files("mm_ldlm.extras.huggingface").joinpath("card.md.j2").read_text(encoding="utf-8"),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return template.render(
        metadata=ModelCardData(
            license=licence,
            library_name="mm-ldlm",
            tags=["diffusion", "text-generation", *(["sentence-transformers"] if embeds else [])],
            pipeline_tag="sentence-similarity" if embeds else None,
        ).to_yaml(),
        name=name,
        run=source.folder.name,
        version=version("mm-ldlm"),
        config=source.config,
        trained_as=capabilities.trained_as,
        uses=[USES.load(use) for use in USES if use in capabilities],
        inverts="l2t" in capabilities,
        parameters=sum(tensor.numel() for tensor in source.tensors.values()),
        step=folder.step_of(source.checkpoint),
        weights="averaged" if source.averaged else "last",
        shortened=sorted({str(each.dtype).removeprefix("torch.") for each in source.tensors.values()} - {"float32"}),
        examples=_examples(source),
        notes=notes.strip(),
        scores=[] if result is None else _scores(result.metrics),
        by_source=[] if result is None else _by_source(result.rows.get("inversion")),
        calibrated=calibration_of(source.checkpoint, use_ema=source.averaged),
        embeds=embeds,
    )


def _examples(source: Source) -> dict[str, dict[str, int]]:
    """Count the examples of the dataset of a run by split and source; empty if the dataset is not there, or changed."""
    try:
        dataset = Dataset.open(source.folder.parent / str(source.config.get("dataset", "")))
        if dataset.fingerprints.get("tokens") != source.config["fingerprints"].get("tokens"):
            return {}
        sources_n = pa.concat_tables(dataset.records.iter_tables(columns=["source"])).column("source")
        taken = {split: sources_n.take(dataset.rows(split)).value_counts().to_pylist() for split in SPLITS}
        return {split: {each["values"]: each["counts"] for each in found} for split, found in taken.items()}
    except MMLDLMError:
        return {}


def _result(source: Source) -> Result | None:
    """Load the evaluation of exactly these weights; None if there is none."""
    try:
        result = load_result(str(source.folder))
    except MMLDLMError:
        return None
    made_by = weights_in(result.metrics.get(MADE_BY))
    return result if made_by == weights_of(source.checkpoint, use_ema=source.averaged) else None


def _by_source(rows: pd.DataFrame | None) -> list[list[str]]:
    """List source, number of sentences and `BY_SOURCE` of the reconstructions, if they are of several sources."""
    if rows is None or "source" not in rows or rows["source"].nunique() < 2:
        return []
    found = {str(source): (len(part), summarise(part, Bootstrap())) for source, part in rows.groupby("source")}
    return [
        [source, f"{count:,}", *(spelled(scores.get(name), form) for name, form in BY_SOURCE.items())]
        for source, (count, scores) in found.items()
    ]


def _scores(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """List the headline numbers with their intervals."""
    found = {
        each: {part: metrics.get(f"{each.key}{end}") for part, end in PARTS.items()} for each in headlines(metrics)
    }
    return [{"label": each.label, "key": each.key, "value": spelled(parts, each.form)} for each, parts in found.items()]
