"""The model card of an exported run, written from its own files."""

from importlib.metadata import version
from importlib.resources import files

from mm_ldlm.core import MMLDLMError
from mm_ldlm.data.corpus.splits import SPLITS
from mm_ldlm.data.dataset import Dataset
from mm_ldlm.evaluation.compare import load_result
from mm_ldlm.evaluation.report.page import spelled
from mm_ldlm.evaluation.suites import PARTS, headlines
from mm_ldlm.inference.exporting import Source
from mm_ldlm.inference.loading import kinds_of
from mm_ldlm.objectives.capabilities import USES
from mm_ldlm.training.checkpoints import folder
from mm_ldlm.training.checkpoints.provenance import MADE_BY, weights_in, weights_of


def card(source: Source, *, name: str, licence: str, embeds: bool) -> str:
    """Write the card: what the model can do, its data, encoder, size and scores, and the commands that load it.

    Args:
        embeds: whether SentenceTransformer can load the encoder of the folder.
    """
    from huggingface_hub import ModelCardData
    from jinja2 import StrictUndefined, Template

    model, objective = kinds_of(source.config)
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
        splits=_splits(source),
        scores=_scores(source),
        embeds=embeds,
    )


def _splits(source: Source) -> dict[str, int]:
    """Count the examples of the dataset of a run by split; empty if the dataset is not there, or changed."""
    try:
        dataset = Dataset.open(source.folder.parent / str(source.config.get("dataset", "")))
        if dataset.fingerprints.get("tokens") != source.config["fingerprints"].get("tokens"):
            return {}
        return {split: len(dataset.rows(split)) for split in SPLITS}
    except MMLDLMError:
        return {}


def _scores(source: Source) -> list[dict[str, str]]:
    """List the headline numbers of the evaluation of exactly these weights, with their intervals."""
    try:
        metrics = load_result(str(source.folder)).metrics
    except MMLDLMError:
        return []
    if weights_in(metrics.get(MADE_BY)) != weights_of(source.checkpoint, use_ema=source.averaged):
        return []
    found = {
        each: {part: metrics.get(f"{each.key}{end}") for part, end in PARTS.items()} for each in headlines(metrics)
    }
    return [{"label": each.label, "key": each.key, "value": spelled(parts, each.form)} for each, parts in found.items()]
