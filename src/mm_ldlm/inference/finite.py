"""Check of what a model returned: finite numbers and words; the cause is named, a weight or a row of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import nn

from mm_ldlm.core.errors import SamplingError
from mm_ldlm.objectives.generation import GenerativeModel

NAMED = 8
"""Number of rows that a message names."""


def check_finite(model: GenerativeModel, values: np.ndarray, *, what: str) -> None:
    """Raise SamplingError unless all values (n, …), one row for each text or latent of the request, are finite.

    Args:
        what: what the model returned, as in "log-probabilities".
    """
    finite_n = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite_n.all():
        _refuse(model, np.flatnonzero(~finite_n).tolist(), count=len(values), what=what)


def check_words(model: GenerativeModel, tokens: Sequence[Sequence[int]]) -> None:
    """Raise SamplingError if a text contains [MASK], [PAD], or an id beyond the vocabulary."""
    shape = model.shape
    forbidden = {shape.mask_id, shape.pad_id}
    for row, ids in enumerate(tokens):
        found = forbidden.intersection(ids)
        if found or (ids and max(ids) >= shape.vocab_size):
            token = min(found) if found else max(ids)
            name = {shape.mask_id: " ([MASK])", shape.pad_id: " ([PAD])"}.get(token, "")
            raise SamplingError(
                f"row {row} of the request: expected a text of words, but the sampler wrote the id {token}{name}. "
                "Choose another sampler, or more steps."
            )


def bad_weight(model: GenerativeModel) -> str | None:
    """Name the first tensor of the model that contains a number that is not finite; None if there is none."""
    for module in (value for value in vars(model).values() if isinstance(value, nn.Module)):
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and (count := int((~torch.isfinite(tensor)).sum())):
                return f"the tensor '{name}' of this run contains {count:,} numbers that are not finite"
    return None


def _refuse(model: GenerativeModel, rows: list[int], *, count: int, what: str) -> NoReturn:
    weight = bad_weight(model)
    where = ", ".join(map(str, rows[:NAMED])) + (", …" if len(rows) > NAMED else "")
    found = f"the model returned {what} that are not finite for {len(rows)} of {count} inputs (rows {where})"
    if weight is not None:
        raise SamplingError(f"{found}: {weight}. Choose another checkpoint.")
    raise SamplingError(
        f"{found}; its weights are finite. Check these inputs (the size of their latents) and the sampler (guidance, "
        "t_max)."
    )
