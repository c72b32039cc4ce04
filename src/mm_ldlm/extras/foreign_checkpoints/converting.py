"""Conversion of a checkpoint of another project to the parameters of a model here, by a known format.

Everything that a checkpoint has and a model lacks, or the reverse, is named: nothing is left out without a rule that
says so.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from mm_ldlm.core import CheckpointError
from mm_ldlm.extras.foreign_checkpoints.parameter_names import (
    DDIT,
    ROUNDING,
    Format,
    Rule,
    extended,
    matches,
    summary,
    without_time,
)
from mm_ldlm.extras.foreign_checkpoints.proving import Differences
from mm_ldlm.extras.foreign_checkpoints.trainers import format_of, trainer_of_kind

ROTARY = {"rotary_emb.inv_freq": 2, "rotary_emb.cos_cached": 1}
"""Tables of rotary positions, and how many dimensions of a head each of their last columns stands for."""
NEVER = -1e4
"""Logit of tokens that a checkpoint has no row for, so that they are never written."""


@dataclasses.dataclass(frozen=True)
class Converted:
    """The parameters of a model here, made from a checkpoint of another project."""

    tensors: dict[str, Tensor]
    """by the name of the model's parameter"""
    format: str | None
    """Name of the format; None: the names of this project"""
    left_out: list[str]
    """names of the checkpoint that became no parameter"""
    averaged: bool = False
    """whether the checkpoint also has averaged weights (EMA), which are imported with the last ones"""
    differences: Differences | None = None
    """from the outputs of the original code, of the averaged weights if there are any; None: nothing was compared"""


def convert(
    found: Mapping[str, Tensor],
    targets: Mapping[str, Size],
    *,
    options: Mapping[str, Any],
    source: Path,
    added_ids: int = 0,
) -> Converted:
    """Convert a checkpoint by the format that its names have; names of no format are returned as they are.

    Args:
        targets: shapes of the model's parameters by name.
        options: configuration of the model, with its kind.
        added_ids: number of the last ids of the model that the checkpoint has no rows for.

    Raises:
        CheckpointError: the model has another architecture or other options, or a name has no rule.
    """
    refuse_other_model(found, options, source)
    if (form := _format(found, options)) is None:
        return Converted(dict(found), None, [])
    head_dim = options["dim"] // options["heads"]
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    missing: set[str] = set()
    numbers = block_numbers(form, found)
    for rule in form.rules:
        for ours, theirs in _instances(rule, numbers):
            used.update(theirs)
            if absent := [name for name in theirs if name not in found]:
                missing.update(absent)
                continue
            made[ours] = _made(rule, [found[name] for name in theirs], head_dim, name=ours, source=source)
            if rule.rows and ours in targets:
                made[ours] = _fitted(made[ours], targets[ours], name=ours, added=added_ids, source=source)
    left_out = sorted(name for name in found if any(matches(pattern, name) for pattern in form.left_out))
    unknown = sorted(set(found) - used - set(left_out))
    if missing or unknown:
        raise CheckpointError(
            f"{source}: expected the parameters of {form.what}. Missing: {summary(missing) or 'none'}. Without a rule: "
            f"{summary(unknown) or 'none'}. No model here has those parts: choose a complete checkpoint of this "
            "format."
        )
    made |= {name: torch.zeros(targets[name]) for name in form.zeros if name in targets}
    return Converted(made, form.name, left_out)


def _format(found: Mapping[str, Tensor], options: Mapping[str, Any]) -> Format | None:
    """Return the format of a checkpoint for a model with these options; None if its names have no known format."""
    form, trainer = format_of(found), trainer_of_kind(kind := options.get("kind"))
    if trainer is None or form is not DDIT:
        return form
    if trainer.timesteps == "constant":
        return without_time(str(kind))
    return extended(trainer.rules, zeros=trainer.zeros, options=trainer.model)


def head_dim_of(found: Mapping[str, Tensor]) -> int | None:
    """Return the dimension of a head from the tables of rotary positions; None if the checkpoint has none."""
    tables = (found[name].shape[-1] * factor for name, factor in ROTARY.items() if name in found and found[name].ndim)
    return next(tables, None)


def refuse_other_model(found: Mapping[str, Tensor], options: Mapping[str, Any], source: Path) -> None:
    """Raise CheckpointError if a model with these options cannot have the function of a checkpoint of a known format.

    The message names the options to set. Names of no format are not checked.
    """
    if (form := _format(found, options)) is None:
        return
    wrong = [
        f"model.{name}={_yaml(value)} (found {_yaml(options.get(name))})"
        for name, value in form.options.items()
        if options.get(name) != value
    ]
    if form.timesteps and not any(each.items() <= options.items() for each in form.timesteps):
        ways = (", ".join(f"model.{name}={_yaml(value)}" for name, value in each.items()) for each in form.timesteps)
        wrong.append(" or ".join(ways) + ", as it was trained")
    if wrong:
        raise CheckpointError(f"{source}: expected the options of {form.what}. Set {'; '.join(wrong)}.")
    expected, head_dim = options["dim"] // options["heads"], head_dim_of(found)
    if head_dim not in (None, expected):
        raise CheckpointError(
            f"{source}: expected heads of dimension {expected} (model.dim / model.heads), found {head_dim} in the "
            f"tables of the rotary positions. Set model.heads to {options['dim'] // head_dim if head_dim else 1}."
        )


def _yaml(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def block_numbers(form: Format, found: Mapping[str, Tensor]) -> list[int]:
    """Return the numbers of the blocks of a checkpoint."""
    patterns = {pattern for rule in form.rules for pattern in rule.theirs if "{n}" in pattern}
    return sorted({int(hit[1]) for name in found for pattern in patterns if (hit := matches(pattern, name))})


def _instances(rule: Rule, numbers: list[int]) -> list[tuple[str, list[str]]]:
    """Return the name here, and the names there, for each number that the rule stands for."""
    if "{n}" not in rule.ours:
        return [(rule.ours, list(rule.theirs))]
    return [(rule.ours.replace("{n}", str(n)), [each.replace("{n}", str(n)) for each in rule.theirs]) for n in numbers]


def _made(rule: Rule, given: list[Tensor], head_dim: int, *, name: str, source: Path) -> Tensor:
    if not all(each.is_floating_point() for each in given):
        raise CheckpointError(
            f"{source}: expected floating-point numbers for {name}, found {', '.join(str(x.dtype) for x in given)}. "
            "Choose another checkpoint."
        )
    try:
        return rule.make(given, head_dim).contiguous()
    except (RuntimeError, IndexError, TypeError, ValueError):
        shapes = ", ".join(f"{theirs} {tuple(each.shape)}" for theirs, each in zip(rule.theirs, given, strict=True))
        raise CheckpointError(
            f"{source}: {name} cannot be made from shapes that do not belong together: {shapes}. Choose another "
            "checkpoint."
        ) from None


def _fitted(value: Tensor, target: Size, *, name: str, added: int, source: Path) -> Tensor:
    """Leave out the rows by which the vocabulary was rounded, or add `added` rows of tokens that are never written."""
    rows = value.shape[0] if value.ndim else 0
    surplus = rows - target[0]
    if 0 <= surplus < ROUNDING:
        return value[: target[0]]
    if -added <= surplus < 0:
        added_rows = value.new_full((-surplus, *value.shape[1:]), NEVER if value.ndim == 1 else 0.0)
        return torch.cat([value, added_rows])
    raise CheckpointError(
        f"{source}: expected {target[0]} tokens in {name}, or up to {ROUNDING - 1} more by rounding, found {rows}. Use "
        "the tokenizer of the checkpoint, with its complete vocabulary (tokenizer.reduce_vocabulary=false)."
    )
