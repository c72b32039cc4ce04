"""Optional stores that a configuration uses: fields and stores of the objective, initial values of the model."""

from __future__ import annotations

import logging
from typing import Any

from mm_ldlm.core.config import parse_kind
from mm_ldlm.core.errors import StoreError
from mm_ldlm.data.corpus.record import LABEL
from mm_ldlm.data.store import NOT_NEEDED, NotNeeded

log = logging.getLogger(__name__)

Parameters = Any  # a section of the parameters, parsed by the hook


def fields_of(objective: Parameters) -> tuple[str, ...]:
    """Return the fields that an objective reads besides the tokens ("latents"); () for a text-only objective."""
    from mm_ldlm.objectives.registry import OBJECTIVES

    return tuple(parse_kind(OBJECTIVES, objective, at="objective").fields)


def stores_of(model: Parameters) -> tuple[str, ...]:
    """Return the stores that a model is initialised from ("token_vectors")."""
    from mm_ldlm.models.registry import MODELS

    return tuple(parse_kind(MODELS, model, at="model").stores)


def stores_of_objective(objective: Parameters) -> tuple[str, ...]:
    """The stores that an objective is made from ("token_clusters")."""
    from mm_ldlm.objectives.registry import OBJECTIVES

    return tuple(parse_kind(OBJECTIVES, objective, at="objective").stores)


def labels_of(objective: Parameters) -> tuple[str, tuple[str, ...] | None]:
    """Return the key of a record's `meta` that is its label, and the answers if the objective compares pairs."""
    from mm_ldlm.objectives.registry import OBJECTIVES

    typed = parse_kind(OBJECTIVES, objective, at="objective")
    return getattr(typed, "label", LABEL), getattr(typed, "answers", None)


def wanted(*, model: Parameters, objective: Parameters) -> frozenset[str]:
    """Return all stores of a model and an objective, with those that they are made from."""
    from mm_ldlm.data.store.needs import needed_stores
    from mm_ldlm.models.registry import MODELS
    from mm_ldlm.objectives.registry import OBJECTIVES

    return needed_stores(
        model=parse_kind(MODELS, model, at="model"), objective=parse_kind(OBJECTIVES, objective, at="objective")
    )


def not_needed(store: str, reason: str) -> NotNeeded:
    """Return the marker of a store that this run does not make, and log the reason below the name of the node."""
    log.info("%s (not needed): %s", store, reason)
    return NOT_NEEDED


def made_by_first_host(store: str) -> NotNeeded | None:
    """Return the marker of a store that the first of several hosts makes; None on that host."""
    from mm_ldlm.distributed.environment import hosts

    return None if hosts().is_first else not_needed(store, "the first host makes them")


def used(name: str, store: Any, needed: tuple[str, ...], *, by: str) -> Any:
    """Return the store if it is needed, otherwise None, even if it exists.

    Raises:
        StoreError: the store is needed, but it was never written.
    """
    if name not in needed:
        return None
    if store is None:
        raise StoreError(f"{by} reads {name}, but no {name} are committed. Run `kedro run --pipeline=embedding` first.")
    return store
