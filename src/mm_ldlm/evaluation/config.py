"""Typed parameters of the pipelines `evaluation` and `reporting`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from mm_ldlm.core.config import (
    CheckpointName,
    Device,
    Fraction,
    InvalidValue,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Repeats,
    Rows,
    RowsOrNone,
    bounded,
    config,
)
from mm_ldlm.core.messages import nearest
from mm_ldlm.data.corpus.splits import Split
from mm_ldlm.evaluation.sts_sets import StsSource, refuse_name
from mm_ldlm.sampling.config import SearchConfig
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.lengths import how_many_lengths
from mm_ldlm.sampling.limits import Draws
from mm_ldlm.sampling.registry import LATENT_SAMPLERS, TEXT_SAMPLERS

Replicates = Annotated[int, bounded(gt=0, le=100_000)]
"""Resamples of a bootstrap: with 100,000 the ends of an interval vary by less than 1 % of its width between seeds"""
Bins = Annotated[int, bounded(gt=0, le=1_000)]
"""Intervals of a histogram: more than the pixels of its figure show nothing further"""


@config
class BootstrapConfig:
    """Parameters of the bootstrap intervals.

    Attributes:
        replicates: number of resamples.
        level: level of the intervals.
    """

    replicates: Replicates = 1000
    level: Fraction = 0.95

    def __post_init__(self) -> None:
        if self.replicates < 20:
            raise InvalidValue(f"replicates must be at least 20, found {self.replicates}", "replicates")
        if not 0.5 <= self.level < 1:
            raise InvalidValue(f"level must lie between 0.5 and 1, found {self.level}", "level")


@config
class SweepPoint:
    """Settings of an inversion: one point of the figure "quality against model calls"."""

    label: str
    sampler: Annotated[Any, TEXT_SAMPLERS]
    length: str | int = "argmax"
    search: SearchConfig | None = None

    def __post_init__(self) -> None:
        how_many_lengths(self.length)


@config
class InversionConfig:
    """Parameters of the inversion suite.

    Attributes:
        sweep: settings of inversion to compare on `sweep_sentences` held-out sentences, which are drawn at random.
        reference: label of the setting that the exact match of the others is divided by; null: the last one.
        length_edges: inclusive upper ends of the length buckets, in tokens.
        baseline_rows: number of training sentences that the two baselines use; 0 disables the baselines.
    """

    sweep: tuple[SweepPoint, ...] = ()
    sweep_sentences: Rows = 128
    reference: str | None = None
    length_edges: tuple[PositiveInt, ...] = (6, 9, 12, 16)
    baseline_rows: RowsOrNone = 20_000

    def __post_init__(self) -> None:
        labels = [point.label for point in self.sweep]
        if len(set(labels)) != len(labels):
            raise InvalidValue(f"expected sweep points with different labels, found {labels}", "sweep")
        if self.reference is not None and self.reference not in labels:
            raise InvalidValue(
                f"expected reference to be a label of the sweep ({labels}), found '{self.reference}'."
                f"{nearest(self.reference, labels)}".removesuffix("."),
                "reference",
                "sweep",
            )
        if list(self.length_edges) != sorted(set(self.length_edges)):
            raise InvalidValue(f"length_edges must increase, found {list(self.length_edges)}", "length_edges")


@config
class StsConfig:
    """Parameters of the STS suite.

    Attributes:
        sets: STS sets, each scored completely.
        files: name → file in STS-B's format, in addition to the sets; it can be set on the command line.
        sampler: latent sampler that embeds the texts.
        too_long: truncate (and count) sentences of more tokens than the model reads, as encoders do, or refuse them.
    """

    sets: tuple[StsSource, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    sampler: Annotated[Any, LATENT_SAMPLERS] = DdimConfig(steps=8)
    too_long: Literal["truncate", "refuse"] = "truncate"

    def __post_init__(self) -> None:
        for name in self.files:
            refuse_name(name, key="files")
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise InvalidValue(f"expected sets and files with different names, found {names}", "sets", "files")

    @property
    def sources(self) -> tuple[StsSource, ...]:
        """All sets, those of `files` last."""
        return (*self.sets, *(StsSource(format="stsb", name=name, path=path) for name, path in self.files.items()))


@config
class TextFile:
    """Text for zero-shot likelihood: one sentence per line (optionally gz), the first `limit` that fit the model."""

    name: str
    path: str
    limit: Rows = 1000


@config
class LikelihoodConfig:
    """Parameters of the likelihood suite.

    Attributes:
        sentences: number of held-out sentences; null: the whole split.
        draws: Monte Carlo draws of the NELBO per sentence; exact likelihoods do not use it.
        buckets: number of buckets of the noise level.
        other_texts: texts for zero-shot likelihood.
    """

    sentences: Rows | None = 500
    draws: Draws = 4
    buckets: Bins = 10
    other_texts: tuple[TextFile, ...] = ()


@config
class GenerationConfig:
    """Parameters of the generation suite.

    Attributes:
        causal_model: folder or hub name of a causal language model that scores the unconditional samples; null omits
            generative perplexity (diversity is always reported).
        mauve: compute MAUVE, which needs the package mauve-text.
    """

    causal_model: str | None = None
    revision: str | None = None
    batch_size: Rows = 16
    self_bleu_texts: Repeats = 200
    mauve: bool = False
    mauve_model: str = "gpt2-large"


@config
class LatentsConfig:
    """Parameters of the latents suite.

    Attributes:
        candidates: number of latents among which each generated latent retrieves its target.
        neighbourhood_sentences: number of texts whose neighbourhoods are compared.
        calibration_sentences: number of texts for the calibration; 0 omits it.
        calibration_samples: number K of samples per text.
    """

    candidates: Rows = 10_000
    neighbourhood_sentences: Rows = 500
    calibration_sentences: RowsOrNone = 64
    calibration_samples: Draws = 6

    def __post_init__(self) -> None:
        if self.calibration_sentences and self.calibration_samples < 2:
            raise InvalidValue(
                f"calibration_samples must be at least 2, found {self.calibration_samples}", "calibration_samples"
            )


@config
class ClassificationEvalConfig:
    """Parameters of the classification suite.

    Attributes:
        split: the split that is scored.
        examples: number of its examples.
        bins: number of bins of confidence, for the calibration error and the reliability diagram.
        baseline_rows: number of training examples of logistic regression on the latents; 0 disables it.
        baseline_grid: inverse strengths of its regularisation; the validation split chooses one.
        baseline_iterations: maximum number of iterations of each fit, which ends earlier where it converges.
    """

    split: Split = "test"
    examples: Rows = 5000
    bins: Bins = 15
    baseline_rows: RowsOrNone = 50_000
    baseline_grid: tuple[PositiveFloat, ...] = (0.01, 1.0)
    baseline_iterations: Repeats = 400

    def __post_init__(self) -> None:
        if not self.baseline_grid:
            raise InvalidValue("expected at least one value in baseline_grid, found none", "baseline_grid")


@config
class ImagesSuiteConfig:
    """Parameters of the images suite.

    Attributes:
        classifier_rows: maximum number of training images of the classifier, and of held-out images that measure it.
        pictures: number of images of each task that the report shows.
    """

    classifier_rows: Rows = 5_000
    pictures: Rows = 40


@config
class EvaluationConfig:
    """Parameters of the pipeline `evaluation`.

    Attributes:
        checkpoint: latest, best or a step.
        batch_tokens: padded tokens of one batch; null: chosen by the device and the size of the vocabulary.
    """

    checkpoint: CheckpointName = "latest"
    use_ema: bool = True
    device: Device | None = None
    batch_tokens: Rows | None = None
    progress: bool = True
    bootstrap: BootstrapConfig = BootstrapConfig()
    inversion: InversionConfig = InversionConfig()
    sts: StsConfig = StsConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    generation: GenerationConfig = GenerationConfig()
    latents: LatentsConfig = LatentsConfig()
    classification: ClassificationEvalConfig = ClassificationEvalConfig()
    images: ImagesSuiteConfig = ImagesSuiteConfig()


@config
class ReportingConfig:
    """Parameters of the pipeline `reporting`.

    Attributes:
        title: title of the page.
        examples: number of examples of each kind in the table of sentences.
        compare: other runs to compare with: run folders, folders with a metrics.json, or MLflow run ids.
        smoothing: smoothing of the training curves, from 0 to below 1.
    """

    title: str = "MM-LDLM"
    examples: Rows = 40
    compare: tuple[str, ...] = ()
    smoothing: NonNegativeFloat = 0.8

    def __post_init__(self) -> None:
        if self.smoothing >= 1:
            raise InvalidValue(f"smoothing must be below 1, found {self.smoothing}", "smoothing")
