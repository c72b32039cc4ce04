"""Classification of texts, of pairs of texts, and of latents, in batches.

n examples, d latent dimension, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import MMLDLM, inputs
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.edge import Latents, TooLong, fraction_of
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.finite import check_finite
from mm_ldlm.inference.writing import pad

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.floating]
LATENTS_PER_BATCH = 8192


@dataclasses.dataclass(frozen=True)
class Classes:
    """Classes of texts, of pairs of texts, or of latents."""

    sources: tuple[str | None, ...]
    """The text, the first text of a pair, or None for a latent"""
    names: tuple[str, ...]
    """Names of the K classes"""
    probabilities: Floats = dataclasses.field(repr=False)
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
        return tuple(self.names[i] for i in np.asarray(self.probabilities).argmax(axis=1))

    def to_frame(self) -> pd.DataFrame:
        """Convert to a table with one row per example: source, label, and the probability of each class by name."""
        import pandas as pd

        values = np.asarray(self.probabilities)
        named = {f"p({name})": values[:, i] for i, name in enumerate(self.names)}
        return pd.DataFrame({"source": list(self.sources), "label": list(self.labels), **named})


def classify(
    model: MMLDLM,
    items: Latents | Sequence[str] | str | Path,
    *,
    second: Sequence[str] | str | None = None,
    too_long: TooLong = "refuse",
) -> Classes:
    """Assign each item to a class; `capabilities.classifies` states what an item is.

    `items` are texts; for a classifier of latents also raw latents or a `.npy` file, and the encoder embeds texts
    first. `second` is the second text of each pair, for a run that compares pairs.
    """
    engine = model._engine
    engine.capabilities.require("classify")
    inputs.check_choice(too_long, get_args(TooLong), name="too_long")
    _refuse_second(engine, given=second is not None)
    if engine.capabilities.classifies == "latents":
        sources, raw_nd = engine.edge.targets(items, written=False)
        return classify_latents(model, raw_nd, sources)
    texts = inputs.check_texts(items)  # type: ignore[arg-type]
    others = None
    if second is not None:
        listed = inputs.check_texts(second, what="second")
        if len(listed) != len(texts):
            raise SamplingError(f"classify: expected one second text for each of {len(texts)}, found {len(listed)}.")
        others = engine.edge.ids(listed, too_long=too_long)
    return classify_tokens(model, engine.edge.ids(texts, too_long=too_long), texts, second=others)


def classify_tokens(
    model: MMLDLM,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    second: Sequence[Sequence[int]] | None = None,
) -> Classes:
    """Classify tokenised texts (each of 1..max_length ids), or pairs with the second texts; see `classify`."""
    engine = model._engine
    engine.capabilities.require("classify")
    _refuse_second(engine, given=second is not None)
    sides = [ids] if second is None else [ids, second]
    for side in sides:
        inputs.check_tokens(side, texts, shape=engine.shape)
    classifier: Any = engine.model
    found_nK = np.zeros((len(ids), len(classifier.classes)))

    def probabilities(batch: list[int]) -> Floats:
        padded = [pad([side[row] for row in batch], classifier.shape.pad_id, classifier.device) for side in sides]
        return _softmax(classifier.class_logits(*padded))

    lengths = [sum(len(side[row]) for side in sides) for row in range(len(ids))]
    with classifier.evaluating():
        for batch, found_BK in in_batches(
            probabilities, lengths, model=classifier, batch_tokens=engine.batch_tokens, doing="classifying"
        ):
            found_nK[batch] = found_BK
    check_finite(classifier, found_nK, what="probabilities of classes")
    unknown_n = np.array([fraction_of(engine.tokenizer.unk_id, row) for row in ids])
    return Classes(tuple(texts), classifier.classes, found_nK, unknown=unknown_n)


def classify_latents(model: MMLDLM, latents: Latents, sources: Sequence[str | None] | None = None) -> Classes:
    """Classify raw latents (n, d); see `classify`."""
    engine = model._engine
    engine.capabilities.require("classify")
    raw_nd = inputs.check_latents(latents, dim=engine.edge.dim)
    named = [None] * len(raw_nd) if sources is None else list(sources)
    if len(named) != len(raw_nd):
        raise SamplingError(f"sources: expected a text or None for each of {len(raw_nd)} latents, found {len(named)}.")
    classifier: Any = engine.model
    with classifier.evaluating():
        parts = engine.edge.standardised(raw_nd).split(LATENTS_PER_BATCH)
        found_nK = np.concatenate(
            [_softmax(classifier.class_logits(part_Bd.to(classifier.device))) for part_Bd in parts]
        )
    check_finite(classifier, found_nK, what="probabilities of classes")
    return Classes(tuple(named), classifier.classes, found_nK, latent_norms=engine.edge.norms(raw_nd))


def _refuse_second(engine: Engine, *, given: bool) -> None:
    """Raise SamplingError if second texts are given for a run that compares no pairs, or missing for one that does."""
    classifies = engine.capabilities.classifies
    if given != (classifies == "pairs"):
        expected = "items without second texts" if given else "a second text for each item"
        found = "second texts" if given else "none"
        raise SamplingError(f"classify: this run classifies {classifies}: expected {expected}, found {found}.")


def _softmax(logits_BK: Tensor) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = torch.softmax(logits_BK.double(), dim=-1).cpu().numpy()
    return found
