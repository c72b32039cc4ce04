"""Parameters under `evaluation.sts`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any

from mm_ldlm.core import EvaluationError, config
from mm_ldlm.evaluation.config import refuse_repeated
from mm_ldlm.extras.sts.sets import Name, StsSource, load_sts
from mm_ldlm.sampling.gaussian import DdimConfig
from mm_ldlm.sampling.registry import LATENT_SAMPLERS

RAREST = 1e-6
"""Largest probability that all pairs of a resample of an STS set have one score"""


@config
class StsConfig:
    """Parameters of the STS suite.

    Attributes:
        sets: STS sets, each scored completely.
        files: name → file in STS-B's format, in addition to the sets; it can be set on the command line.
        sampler: latent sampler that embeds the texts.
    """

    sets: tuple[StsSource, ...] = ()
    files: dict[Name, str] = field(default_factory=dict)
    sampler: Annotated[Any, LATENT_SAMPLERS] = DdimConfig(steps=8)

    def __post_init__(self) -> None:
        refuse_repeated([source.name for source in self.sources], "sets", "files")

    @property
    def sources(self) -> tuple[StsSource, ...]:
        """All sets, with the ones of `files` last."""
        return (*self.sets, *(StsSource(format="stsb", name=name, path=path) for name, path in self.files.items()))

    def input_files(self) -> Iterator[tuple[str, str]]:
        yield from ((f"files.{name}", path) for name, path in self.files.items())
        here = {place: source.path for place, source in enumerate(self.sets) if source.format != "hub"}
        yield from ((f"sets[{place}].path", path) for place, path in here.items() if path)

    def missing(self) -> str | None:
        """Read the sets that are not on the hub, so that a run does not find at its end that it cannot.

        Explain which one is malformed, or has so few scores that some resample of it has only one.
        """
        for source in self.sources:
            if source.format != "hub":
                try:
                    pairs = load_sts(source)
                except EvaluationError as error:
                    return str(error)
                counts = Counter(pairs.gold_N.tolist()).values()
                if sum((count / len(pairs)) ** len(pairs) for count in counts) > RAREST:
                    return (
                        f"STS set '{source.name}': expected scores that differ in every resample too, such as 8 "
                        f"different ones, found {len(pairs)} pairs, {max(counts)} of them with one score. Add pairs, "
                        "or remove the set from evaluation.sts."
                    )
        return None


@config
class StsKeys:
    """The key that the suite adds to the section `evaluation`."""

    sts: StsConfig = StsConfig()
