"""Weights of a checkpoint: the properties that they share with every run that loads them, and their loading.

`load_tensors` copies tensors into a module, plain or sharded, and checks that they match.
"""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mm_ldlm.core import CheckpointError, ConfigurationError, escape, parse_kind, shorten, to_dict
from mm_ldlm.distributed.parallel import assign
from mm_ldlm.models.base import MODELS, DataShape

# -- identity ----------------------------------------------------------------------------------------------------------


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
    """Raise CheckpointError if the identity of a checkpoint differs from a run's.

    The message has three lines, one of them with the values of the first four fields that differ and the names of the
    others.
    """
    # A parameter that a newer version added gets its default here, which keeps the earlier behaviour.
    with contextlib.suppress(ConfigurationError, KeyError, TypeError):
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


# -- tensors -----------------------------------------------------------------------------------------------------------


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers by name that belong to a checkpoint: what a module keeps without learning it."""
    kept = module.state_dict().keys()
    return {name: value for name, value in module.named_buffers() if name in kept}


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint holds, by name: parameters, shared ones once, and persistent buffers."""
    return {**dict(module.named_parameters()), **persistent_buffers(module)}


def finite(tensor: Tensor, *, or_infinite: bool = False) -> Tensor:
    """Return whether all entries are finite, 0-D bool; with `or_infinite` only NaN is refused."""
    return ~torch.isnan(tensor).any() if or_infinite else torch.isfinite(tensor).all()


def refuse_non_finite(
    tensors: Mapping[str, Tensor], path: Path, *, remedy: str, or_infinite: Collection[str] = ()
) -> None:  # fmt: skip
    """Raise CheckpointError if a tensor contains NaN or infinity: training from it cannot recover.

    Args:
        or_infinite: names of tensors that may contain infinity (buffers, where it can stand for "none yet").
    """
    wrong = [name for name, value in tensors.items() if not bool(finite(value, or_infinite=name in or_infinite))]
    if wrong:
        raise CheckpointError(
            f"{path}: expected finite numbers, found NaN or infinity in {len(wrong)} of {len(tensors)} tensors, the "
            f"first of them {wrong[0]}. {remedy}"
        )


def load_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors by name into `targets`, in place; every rank must call it if these are sharded.

    Args:
        path: file that the tensors were read from, for the error.

    Raises:
        CheckpointError: names or shapes differ.
    """
    shapes = [
        f"{name}: expected {tuple(target.shape)}, found {tuple(tensors[name].shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    differing = {
        "Missing": sorted(set(targets) - set(tensors)), "Unknown": sorted(set(tensors) - set(targets)), "Shapes": shapes
    }  # fmt: skip
    if any(differing.values()):
        words = [
            f"{kind} ({len(names)}): {'; '.join(names[:3])}{' …' * (len(names) > 3)}."
            for kind, names in differing.items()
            if names
        ]
        raise CheckpointError(
            f"{path} does not fit this model. {' '.join(words)} Use the configuration that the checkpoint was trained "
            "with, or choose another checkpoint."
        )
    for name, target in targets.items():
        assign(target, tensors[name])
