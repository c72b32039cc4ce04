"""Typed parameters of the pipelines `evaluation` and `reporting`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from mm_ldlm.core import (
    CheckpointName,
    Device,
    Precision,
    Rows,
    RowsOrNone,
    bounded,
    config,
    refuse_if,
    slug,
)
from mm_ldlm.data.corpus.detokenising import Published
from mm_ldlm.evaluation.bootstrap import Bootstrap
from mm_ldlm.sampling.limits import Draws, Length
from mm_ldlm.sampling.registry import TEXT_SAMPLERS
from mm_ldlm.sampling.search import SearchConfig

Replicates = Annotated[int, bounded(ge=20, le=100_000)]
"""Resamples of a bootstrap: with 100,000 the ends of an interval vary by less than 1 % of its width between seeds"""
Level = Annotated[float, bounded(ge=0.5, lt=1)]
"""Level of an interval"""


@config
class BootstrapConfig:
    """Parameters of the bootstrap intervals.

    Attributes:
        replicates: number of resamples.
        level: level of the intervals.
    """

    replicates: Replicates = 1000
    level: Level = 0.95

    def seeded(self, seed: int) -> Bootstrap:
        """Make the bootstrap with this seed."""
        return Bootstrap(self.replicates, self.level, seed)


def refuse_repeated(names: Sequence[str], *keys: str) -> None:
    """Raise InvalidValue for `keys` if two names have the same letters and digits, which would be one key of scores."""
    refuse_if(len(set(map(slug, names))) != len(names), f"expected unique names, found {list(names)}", *keys)


@config
class SweepPoint:
    """Settings of an inversion: one point of the figure "quality against model calls"."""

    label: str
    sampler: Annotated[Any, TEXT_SAMPLERS]
    length: Length = "argmax"
    search: SearchConfig | None = None


@config
class InversionConfig:
    """Parameters of the inversion suite.

    Attributes:
        sweep: settings of inversion to compare on `sweep_sentences` held-out sentences, which are drawn at random.
        reference: label of the setting that the exact match of the others is divided by; null: the last one.
        baseline_rows: number of training sentences that the two baselines use; 0 disables the baselines.
    """

    sweep: tuple[SweepPoint, ...] = ()
    sweep_sentences: Rows = 128
    reference: str | None = None
    baseline_rows: RowsOrNone = 20_000

    def __post_init__(self) -> None:
        labels = [point.label for point in self.sweep]
        refuse_repeated(labels, "sweep")
        refuse_if(
            self.reference not in (None, *labels),
            f"expected reference to be a label of the sweep ({labels}), found '{self.reference}'",
            "reference",
            "sweep",
        )


@config
class TextFile:
    """Text for zero-shot likelihood: a file (optionally gz) with one text per line.

    A model of wrapped texts scores the lines in the same form: joined, and divided into texts of its length.

    Attributes:
        limit: most texts that are scored, the first that fit the model.
        detokeniser: see `IngestionConfig.detokeniser`.
    """

    name: str
    path: str
    limit: Rows = 1000
    detokeniser: Published | None = None

    def input_files(self) -> Iterator[tuple[str, str]]:
        yield "path", self.path


@config
class LikelihoodConfig:
    """Parameters of the likelihood suite.

    Attributes:
        sentences: number of held-out sentences; null: the entire split.
        draws: Monte Carlo draws of the NELBO per sentence; exact likelihoods do not use it.
        other_texts: texts for zero-shot likelihood.
    """

    sentences: Rows | None = 500
    draws: Draws = 4
    other_texts: tuple[TextFile, ...] = ()

    def __post_init__(self) -> None:
        refuse_repeated([text.name for text in self.other_texts], "other_texts")


@config
class GenerationConfig:
    """Parameters of the generation suite.

    Attributes:
        causal_model: folder or hub name of a causal language model, or a run folder with exact likelihoods, that scores
            the unconditional samples; null omits generative perplexity (diversity is always reported).
    """

    causal_model: str | None = None
    revision: str | None = None
    batch_size: Rows = 16


@config
class EvaluationConfig:
    """Parameters of the pipeline `evaluation`.

    Attributes:
        checkpoint: latest, best or a step.
        precision: of the texts that the suites write; likelihoods are float32.
        batch_tokens: padded tokens of one batch; null: chosen by the device and the size of the vocabulary.
    """

    checkpoint: CheckpointName = "latest"
    use_ema: bool = True
    device: Device | None = None
    precision: Precision = "auto"
    batch_tokens: Rows | None = None
    bootstrap: BootstrapConfig = BootstrapConfig()
    inversion: InversionConfig = InversionConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    generation: GenerationConfig = GenerationConfig()


@config
class ReportingConfig:
    """Parameters of the pipeline `reporting`.

    Attributes:
        title: title of the page.
        examples: number of examples of each kind in the table of sentences.
        compare: other runs to compare with: run folders, folders with a metrics.json, or MLflow run ids.
    """

    title: str = "MM-LDLM"
    examples: Rows = 40
    compare: tuple[str, ...] = ()

    def input_files(self) -> Iterator[tuple[str, str]]:
        for place, name in enumerate(self.compare):
            if not re.fullmatch(r"[0-9a-f]{32}", name):  # the id of an MLflow run
                yield f"compare[{place}]", name


def problems(sections: Mapping[str, Any]) -> list[str]:
    """List the points of the sweep whose sampler or length the run does not support, if it inverts latents at all."""
    sampling, capabilities = sections["sampling"], sections["objective"].capabilities(sections["model"])
    if capabilities.task_refusal("l2t", order=sampling.unconditional.order, length=sampling.length) is not None:
        return []
    refused = {}
    for place, point in enumerate(sections["evaluation"].inversion.sweep):
        key = f"evaluation.inversion.sweep[{place}]"
        refused[f"{key}.sampler"] = capabilities.sampler_refusal(point.sampler, "l2t", given_latent=True)
        refused[f"{key}.length"] = capabilities.length_refusal(
            point.length, "l2t", max_length=sections["tokenizer"].max_length, sampler=point.sampler
        )
    return [f"parameter '{key}': {reason}" for key, reason in refused.items() if reason is not None]
