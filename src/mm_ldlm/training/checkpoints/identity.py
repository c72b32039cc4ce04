"""Identity of a checkpoint: the properties that it shares with every run that loads it."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mm_ldlm.core import CheckpointError, ConfigurationError, escape, parse_kind, shorten, show, to_dict
from mm_ldlm.models.base import DataShape
from mm_ldlm.models.registry import MODELS


def identity_of(*, model: Any, shape: DataShape, objective: Any, fingerprints: Mapping[str, str]) -> dict[str, Any]:
    """Make the identity of a run: its model, shape and stores, and what the outputs of its objective mean."""
    return {
        "model": to_dict(model),
        "shape": to_dict(shape),
        **{name: fingerprints.get(name, "") for name in ("tokenizer", "normaliser", "encoder")},
        **{name: fingerprints.get(name, "") for name in objective.stores},
        **{name: fingerprints[name] for name in fingerprints if name.endswith("_normaliser")},
        "objective": {"kind": objective.kind, **objective.identity},
    }


def refuse_other(mine: dict[str, Any], theirs: Any, path: Path, *, remedy: str) -> None:
    """Raise CheckpointError if the identity of a checkpoint differs from that of a run.

    The message has three lines, one of them with the values of the first four fields that differ and the names of the
    others.
    """
    if not isinstance(theirs, dict):
        raise CheckpointError(
            f"{path}: expected the identity of its run, found {show(theirs, 80)}. Choose another checkpoint."
        )
    # A parameter that a newer version added gets its default here, which keeps the earlier behaviour.
    with contextlib.suppress(ConfigurationError, KeyError):
        theirs = {**theirs, "model": to_dict(parse_kind(MODELS, theirs["model"], at="model"))}
    if differing := differences(theirs, mine):
        lines = [shorten(escape(line), 160) for line in differing]
        names = shorten(", ".join(line.partition(":")[0] for line in lines[4:]))
        more = [f"and {len(lines) - 4} more: {names}"] if names else []
        raise CheckpointError(f"{path} belongs to another model:\n  {'; '.join(lines[:4] + more)}\n{remedy}")


def differences(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """List `field: checkpoint has …, this run …` for every leaf that differs."""
    a, b = flat(theirs), flat(mine)
    return [
        f"{name}: checkpoint has {a.get(name, 'nothing')!r}, this run {b.get(name, 'nothing')!r}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to their leaves by dotted path; lists are not flattened."""
    if isinstance(value, dict):
        return {key: item for name, inner in value.items() for key, item in flat(inner, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): value}
