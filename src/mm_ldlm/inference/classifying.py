"""Classification of texts, of pairs of texts, and of latents, in batches.

n examples, d latent dimension, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mm_ldlm.errors import SamplingError
from mm_ldlm.inference import inputs
from mm_ldlm.inference.batching import in_batches
from mm_ldlm.inference.writing import pad
from mm_ldlm.objectives.generation import GenerativeModel

LATENTS_PER_BATCH = 8192


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
    with model.evaluating():
        for batch in in_batches(lengths, batch_tokens=batch_tokens, doing="classifying"):
            tokens_BL = pad([ids[row] for row in batch], model.shape.pad_id, model.device)
            second_BL = None
            if second is not None:
                second_BL = pad([second[row] for row in batch], model.shape.pad_id, model.device)
            found_nK[batch] = _probabilities(model.class_logits(tokens_BL, second_BL=second_BL))
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
