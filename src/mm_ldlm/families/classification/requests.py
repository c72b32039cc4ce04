"""Classification of texts, of pairs of texts, and of latents, in batches.

n examples, d latent dimension, K classes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mm_ldlm.core import SamplingError, check
from mm_ldlm.inference.api import MMLDLM
from mm_ldlm.inference.arguments import texts_of, vectors_of
from mm_ldlm.inference.model import Latents, TooLong, by_row
from mm_ldlm.inference.writer import Values

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.floating]
LATENTS_PER_BATCH = 8192
PROBABILITIES = "probabilities_of_classes"


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes of texts, of pairs of texts, or of latents."""

    main: ClassVar[str] = "labels"
    sources: tuple[str | None, ...]
    """The text, the first text of a pair, or None for a latent"""
    names: tuple[str, ...]
    """Names of the K classes"""
    probabilities: npt.NDArray[np.float64] = dataclasses.field(repr=False)
    """(n, K) in the order of `names`; each row sums to 1"""
    latent_norms: Floats | None = dataclasses.field(default=None, repr=False)
    """(n,) as in `Texts`; None for texts"""
    unknown: Floats | None = dataclasses.field(default=None, repr=False)
    """(n,) fraction of the tokens of each text that are [UNK]; None for latents"""

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def labels(self) -> tuple[str, ...]:
        """The most probable class of each example"""
        return tuple(self.names[i] for i in self.probabilities.argmax(axis=1))

    def to_frame(self) -> "pd.DataFrame":
        """Convert to a table with one row per example: source, label, and the probability of each class by name."""
        import pandas as pd

        named = {f"p({name})": self.probabilities[:, i] for i, name in enumerate(self.names)}
        return pd.DataFrame({"source": list(self.sources), "label": list(self.labels), **named})


@by_row
def classify(
    model: MMLDLM,
    items: Latents | Sequence[str] | str | Path,
    *,
    second: Sequence[str] | str | None = None,
    too_long: TooLong = "refuse",
) -> Classes:
    """Assign each text, latent or pair of texts to a class; a run classifies one of the three.

    Args:
        items: texts; for a classifier of latents also raw latents, and the encoder embeds texts first.
        second: second text of each pair, for a run that compares pairs.
    """
    model.capabilities.require("classify")
    too_long = check(too_long, TooLong, name="too_long")
    _refuse_second(model, given=second is not None)
    if cast(Any, model.model).classifies == "latents":
        sources, raw_nd = model.targets(items, name="items", written=False, too_long=too_long)
        return classify_latents(model, raw_nd, sources)
    texts, others = texts_of(items, name="items"), None
    if second is not None:
        seconds = texts_of(second, name="second")
        if len(seconds) != len(texts):
            raise SamplingError(f"classify: expected one second text for each of {len(texts)}, found {len(seconds)}.")
        others = model.ids(seconds, too_long=too_long, name="second")
    return classify_tokens(model, model.ids(texts, too_long=too_long, name="items"), texts, second=others)


def classify_tokens(
    model: MMLDLM,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    second: Sequence[Sequence[int]] | None = None,
) -> Classes:
    """Classify tokenised texts (each of 1..max_length ids), or pairs with the second texts; see `classify`."""
    sides = [ids] if second is None else [ids, second]
    writer, classifier = model.writer, cast(Any, model.model)

    def work(batch: list[int]) -> Values:
        return _probabilities(classifier.class_logits(*(writer.padded([side[row] for row in batch]) for side in sides)))

    lengths = [sum(len(side[row]) for side in sides) for row in range(len(sides[0]))]
    with writer.computing(work, lengths, "classifying") as (batches, results):
        found = writer.joined(batches, results)
    probabilities = found.get(PROBABILITIES, np.zeros((0, len(classifier.classes))))
    return Classes(tuple(texts), classifier.classes, probabilities, unknown=model.unknown(sides[0]))


def classify_latents(model: MMLDLM, latents: Latents, sources: Sequence[str | None] | None = None) -> Classes:
    """Classify raw latents (n, d); see `classify`."""
    raw_nd = vectors_of(latents, dim=model.dim)
    latents_nd, classifier = model.standardised(raw_nd), cast(Any, model.model)
    batches = np.array_split(np.arange(len(raw_nd)), -(-len(raw_nd) // LATENTS_PER_BATCH) or 1)
    with classifier.evaluating():
        results = [_probabilities(classifier.class_logits(latents_nd[batch])) for batch in batches]
    found = model.writer.joined(batches, results)
    named = tuple(sources or [None] * len(raw_nd))
    return Classes(named, classifier.classes, found[PROBABILITIES], latent_norms=model.norms(raw_nd))


def _refuse_second(model: MMLDLM, *, given: bool) -> None:
    """Raise SamplingError if second texts are given for a run that compares no pairs, or missing for one that does."""
    classifies = cast(Any, model.model).classifies
    if given != (classifies == "pairs"):
        expected = "items without second texts" if given else "a second text for each item"
        found = "second texts" if given else "none"
        raise SamplingError(f"classify: this run classifies {classifies}: expected {expected}, found {found}.")


def _probabilities(logits_BK: Tensor) -> Values:
    return {PROBABILITIES: torch.softmax(logits_BK.double(), dim=-1)}
