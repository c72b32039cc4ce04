"""Parameters of the section `score_card`. Draws, judge and bootstrap are parameters of `evaluation`."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any, Literal

from mm_ldlm.core import Rows, config
from mm_ldlm.inference.files import pretrained_names
from mm_ldlm.sampling.ancestral import AncestralConfig
from mm_ldlm.sampling.limits import Length, Temperature
from mm_ldlm.sampling.registry import TEXT_SAMPLERS


@config
class ScoreCardConfig:
    """Parameters of the pipeline `score_card`.

    Attributes:
        runs: name of a row → a run, one of its checkpoints, a folder of runs (the newest), or a model of the package. A
            glob that finds several runs, such as the seeds of a model, gives one row over all of them. The other rows
            are compared with the first.
        texts: file with one held-out text per line, wrapped if the data are; null: the test split of the data.
        given_length: compute costs of texts given their lengths, as papers report them, and as runs without a
            distribution over lengths have them. It applies to all rows.
        samples: number of texts from noise for each run and temperature.
        temperatures: temperatures of the samples; temperature 1 gives all columns but generative perplexity.
        sampler: sampler of the runs that it fits; the others use their own.
        length: length of the samples: drawn from the run's distribution, or a number of tokens.
        entropy: unigram entropy of all samples together (corpus), or the mean over the samples (text), which papers
            report for long texts.
        mauve: compute MAUVE on the embeddings of the encoder.
    """

    runs: dict[str, str] = field(default_factory=dict)
    texts: str | None = None
    given_length: bool = False
    samples: Rows = 256
    temperatures: tuple[Temperature, ...] = (0.7, 0.85, 1.0, 1.15)
    sampler: Annotated[Any, TEXT_SAMPLERS] = AncestralConfig(steps=64)
    length: Length = "sample"
    entropy: Literal["corpus", "text"] = "corpus"
    mauve: bool = True

    def input_files(self) -> Iterator[tuple[str, str]]:
        if self.texts is not None:
            yield "texts", self.texts
        yield from ((f"runs.{name}", path) for name, path in self.runs.items() if path not in pretrained_names())
