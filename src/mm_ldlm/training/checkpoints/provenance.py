"""Provenance of results: which weights, which parameters and which seed made a table, a metric file or a figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.core import EvaluationError
from mm_ldlm.data.store.fingerprint import file_sha256
from mm_ldlm.training.checkpoints.reference import MARKER

MADE_BY = "made_by"
"""Key of the provenance in a metric file, in the attributes of a table and in the metadata of a figure"""
KEEP = "keep_if_made_by"
"""Attribute of a table that was not requested: the weights whose earlier table stays, whatever its parameters were"""
_WEIGHTS = ("run", "checkpoint", "digest", "weights")


def weights_of(checkpoint: Path, *, use_ema: bool) -> dict[str, str]:
    """Describe weights: names of run and checkpoint, a digest of the checkpoint, and which of its weights.

    The digest differs between two training runs of the same name; the names are for the reader.
    """
    averaged = use_ema and (checkpoint / "ema.safetensors").is_file()
    run = checkpoint.parents[1] if checkpoint.parent.name == "checkpoints" else checkpoint.parent
    return {
        "run": run.name,
        "checkpoint": checkpoint.name,
        "digest": file_sha256(checkpoint / MARKER)[:32],
        "weights": "averaged" if averaged else "last",
    }


def made_by(weights: Mapping[str, str], *, parameters: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Make the provenance of a result: its weights, the parameters of its section and the seed."""
    return {**weights, "parameters": dict(parameters), "seed": seed}


def weights_in(found: Any) -> dict[str, Any] | None:
    """Return the weights that a provenance names; None where it names none."""
    return {key: found[key] for key in _WEIGHTS} if isinstance(found, Mapping) and {*_WEIGHTS} <= found.keys() else None


def refuse_other(found: Any, expected: Mapping[str, str], *, what: str, remedy: str) -> None:
    """Refuse a result of other weights than the expected ones.

    Args:
        found: the provenance of the result, or None for a result without one.

    Raises:
        EvaluationError: it names other weights, or none.
    """
    weights = weights_in(found)
    if weights == weights_in(expected):
        return
    theirs = "weights that it does not name" if weights is None else _described(weights)
    ours = _described(expected)
    if weights is not None and theirs == ours:
        theirs = f"an earlier training of that name ({theirs})"
    raise EvaluationError(f"{what}: expected results of {ours}, found results of {theirs}. {remedy}")


def _described(weights: Mapping[str, str]) -> str:
    return f"run {weights['run']}, {weights['checkpoint']}, {weights['weights']} weights"
