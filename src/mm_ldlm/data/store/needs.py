"""The stores that a configuration needs besides records, tokens, index and tokenizer."""

from __future__ import annotations

from typing import Any

MADE_FROM = {"token_clusters": "token_vectors"}
"""Store → the store that it is made from."""
FROM_ENCODER = frozenset({"latents", "token_vectors", "token_states"})
"""Stores that an encoder makes"""


def needed_stores(*, model: Any, objective: Any) -> frozenset[str]:
    """Return the fields and stores of an objective and the stores of a model, with those that they are made from.

    Args:
        model, objective: typed configurations (`models.base.ModelConfig`, `objectives.base.ObjectiveConfig`).
    """
    named = {*objective.fields, *objective.stores, *model.stores}
    return frozenset(named | {MADE_FROM[name] for name in named if name in MADE_FROM})
