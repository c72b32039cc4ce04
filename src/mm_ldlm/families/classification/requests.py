"""Classification of texts, of pairs of texts, and of latents, in batches.

n examples, d latent dimension, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.inference import inputs
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.edge import TooLong, fraction_of
from mm_ldlm.inference.engine import Engine
from mm_ldlm.inference.finite import check_finite
from mm_ldlm.inference.results import Classes
from mm_ldlm.inference.writing import pad
from mm_ldlm.objectives.generation import GenerativeModel

LATENTS_PER_BATCH = 8192


def classify(engine: Engine, items: Any, *, second: Any, too_long: TooLong) -> Classes:
    """See `MMLDLM.classify`."""
    engine.capabilities.require("classify")
    inputs.check_choice(too_long, get_args(TooLong), name="too_long")
    refuse_second(engine.capabilities.classifies, given=second is not None)
    if engine.capabilities.classifies == "latents":
        sources, raw_nd = engine.edge.targets(items, written=False)
        return latents(engine, raw_nd, sources)
    listed = inputs.check_texts(items)
    ids = engine.edge.ids(listed, too_long=too_long)
    others = None if second is None else engine.edge.ids(second_texts(second, count=len(ids)), too_long=too_long)
    return tokens(engine, ids, listed, second=others)


def tokens(engine: Engine, ids: Any, texts: Any, *, second: Any) -> Classes:
    """See `MMLDLM.classify_tokens`."""
    engine.capabilities.require("classify")
    inputs.check_tokens(ids, texts, shape=engine.shape)
    refuse_second(engine.capabilities.classifies, given=second is not None)
    if second is not None:
        inputs.check_tokens(second, texts, shape=engine.shape)
    found = classify_tokens(engine.model, ids, second=second, batch_tokens=engine.batch_tokens)
    check_finite(engine.model, found, what="probabilities of classes")
    unknown_n = np.array([fraction_of(engine.tokenizer.unk_id, row) for row in ids])
    return Classes(tuple(texts), engine.model.classes, found, unknown=unknown_n)


def latents(engine: Engine, given: Any, sources: Sequence[str | None] | None) -> Classes:
    """See `MMLDLM.classify_latents`."""
    engine.capabilities.require("classify")
    raw_nd = inputs.check_latents(given, dim=engine.edge.dim)
    named = [None] * len(raw_nd) if sources is None else list(sources)
    if len(named) != len(raw_nd) or not all(name is None or isinstance(name, str) for name in named):
        raise SamplingError(f"sources: expected a text or None for each of {len(raw_nd)} latents, found another list.")
    found = classify_latents(engine.model, engine.edge.standardised(raw_nd))
    check_finite(engine.model, found, what="probabilities of classes")
    return Classes(tuple(named), engine.model.classes, found, latent_norms=engine.edge.norms(raw_nd))


def refuse_second(classifies: str | None, *, given: bool) -> None:
    """Raise SamplingError if second texts are given for a run that compares no pairs, or missing for one that does."""
    if given != (classifies == "pairs"):
        expected = "items without second texts" if given else "a second text for each item"
        found = "second texts" if given else "none"
        raise SamplingError(f"classify: this run classifies {classifies}: expected {expected}, found {found}.")


def second_texts(second: Sequence[str] | str, *, count: int) -> list[str]:
    """Check the second texts of `count` pairs."""
    listed = inputs.check_texts(second, what="second")
    if len(listed) != count:
        raise SamplingError(f"classify: expected one second text for each of {count}, found {len(listed)}.")
    return listed


def classify_tokens(
    model: GenerativeModel,
    ids: Sequence[Sequence[int]],
    *,
    second: Sequence[Sequence[int]] | None,
    batch_tokens: int,
) -> npt.NDArray[np.float64]:
    """Compute the probabilities (n, K) of tokenised texts, or of pairs with the second texts `second`."""
    found_nK = np.zeros((len(ids), len(model.classes)))
    lengths = [len(row) + (0 if second is None else len(second[i])) for i, row in enumerate(ids)]

    def probabilities(batch: list[int]) -> npt.NDArray[np.float64]:
        tokens_BL = pad([ids[row] for row in batch], model.shape.pad_id, model.device)
        second_BL = None
        if second is not None:
            second_BL = pad([second[row] for row in batch], model.shape.pad_id, model.device)
        return _probabilities(model.class_logits(tokens_BL, second_BL=second_BL))

    with model.evaluating():
        for batch, found_BK in in_batches(
            probabilities, lengths, model=model, batch_tokens=batch_tokens, doing="classifying"
        ):
            found_nK[batch] = found_BK
    return found_nK


def classify_latents(model: GenerativeModel, latents_nd: Tensor) -> npt.NDArray[np.float64]:
    """Compute the probabilities (n, K) of standardised latents."""
    with model.evaluating():
        parts = [
            _probabilities(model.class_logits(latents_Bd=latents_Bd.to(model.device)))
            for latents_Bd in latents_nd.split(LATENTS_PER_BATCH)
        ]
    return np.concatenate(parts)


def _probabilities(logits_BK: Tensor) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = torch.softmax(logits_BK.double(), dim=-1).cpu().numpy()
    return found
