"""Which parameters a mode trains, by tags set where a layer is made, and the proof that it was so.

A tag sits on a module and holds for everything below it that has no tag of its own; names are never matched
(pitfalls row 10). Tags survive DDP, FSDP2, `torch.compile` and a move between devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from mm_ldlm.errors import FreezingError

Mode = Literal["unconditional", "l2t", "t2l", "mixed", "sequential"]
M = TypeVar("M", bound=nn.Module)

PARTS = frozenset(
    {
        "text_embedding", "text_head", "latent_encoder", "latent_head", "length_head", "backbone", "conditioning",
        "null_text", "null_latent",
    }
)  # fmt: skip
INPUT_PARTS = frozenset({"text_embedding", "latent_encoder"})
"""Layers that only make sense frozen when they come trained."""
OCCASIONAL_PARTS = frozenset({"null_text", "null_latent"})
"""Trained only on steps that drop a condition; exempt from "a trainable parameter has had a gradient"."""

# mode → (parts without a loss in it, input parts frozen when they start from trained weights)
_FROZEN: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "unconditional": (frozenset(), frozenset()),
    "l2t": (frozenset({"latent_head", "null_text"}), frozenset({"latent_encoder"})),
    "t2l": (frozenset({"text_head", "length_head", "null_latent"}), frozenset({"text_embedding"})),
    "mixed": (frozenset(), frozenset()),
    "sequential": (frozenset(), frozenset()),
}


def tag(module: M, part: str) -> M:
    """Mark a module as belonging to a part, and give it back."""
    if part not in PARTS:
        raise FreezingError(f"unknown part {part!r}; one of {', '.join(sorted(PARTS))}.")
    module._mm_ldlm_part = part  # type: ignore[assignment]
    return module


def tagged_parameters(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """(name, part, parameter) for every parameter once; a shared one belongs to the first layer that holds it.

    Raises:
        FreezingError: for a parameter under no tag.
    """
    seen: set[int] = set()

    def walk(module: nn.Module, prefix: str, part: str | None) -> Iterator[tuple[str, str, nn.Parameter]]:
        part = getattr(module, "_mm_ldlm_part", part)
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if part is None:
                raise FreezingError(f"parameter {prefix}{name} has no tag: call freezing.tag where its layer is made.")
            yield f"{prefix}{name}", part, parameter
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{prefix}{name}.", part)

    yield from walk(model, "", None)


def frozen_parts(mode: Mode, *, trained_parts: frozenset[str] = frozenset()) -> frozenset[str]:
    """The parts that a mode freezes (mathematics §4); `trained_parts` were loaded from trained weights."""
    if mode not in get_args(Mode):
        raise FreezingError(f"unknown mode {mode!r}; one of {', '.join(get_args(Mode))}.")
    always, when_trained = _FROZEN[mode]
    return always | (when_trained & trained_parts)


def apply_mode_freezing(
    model: nn.Module,
    mode: Mode,
    *,
    trained_parts: frozenset[str] = frozenset(),
    extra: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Set `requires_grad` on every parameter as the mode says, and give back the frozen parts.

    `extra` are parts that the configuration freezes on top of the mode.

    Raises:
        FreezingError: a part is unknown, or an input layer would be frozen at its random initial values.
    """
    if unknown := (trained_parts | extra) - PARTS:
        raise FreezingError(f"unknown parts {sorted(unknown)}; known: {', '.join(sorted(PARTS))}.")
    frozen = frozen_parts(mode, trained_parts=trained_parts) | extra
    if untrained := sorted((frozen & INPUT_PARTS) - trained_parts):
        raise FreezingError(
            f"mode '{mode}' was asked to freeze {', '.join(untrained)}, which is randomly initialised: a frozen random "
            f"input layer destroys what it reads. Load trained weights for {', '.join(untrained)} first, "
            "or leave it trainable."
        )
    for _, part, parameter in tagged_parameters(model):
        parameter.requires_grad_(part not in frozen)
    return frozen


# -- the proof ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FreezingRow:
    """One line of the table: what a parameter should do and what it did."""

    name: str
    part: str
    shape: tuple[int, ...]
    trains: bool
    moved: bool
    had_gradient: bool


@dataclass(frozen=True)
class FreezingTable:
    rows: tuple[FreezingRow, ...]

    @property
    def trainable(self) -> tuple[FreezingRow, ...]:
        return tuple(row for row in self.rows if row.trains)

    @property
    def frozen(self) -> tuple[FreezingRow, ...]:
        return tuple(row for row in self.rows if not row.trains)

    def by_part(self) -> dict[str, dict[str, int]]:
        """part → numbers of parameters (elements) that train and that are frozen."""
        counts: dict[str, dict[str, int]] = {}
        for row in self.rows:
            entry = counts.setdefault(row.part, {"trains": 0, "frozen": 0})
            entry["trains" if row.trains else "frozen"] += int(torch.Size(row.shape).numel())
        return counts

    def __str__(self) -> str:
        lines = [f"{'part':<16}{'trains':>14}{'frozen':>14}"]
        lines += [f"{part:<16}{n['trains']:>14,}{n['frozen']:>14,}" for part, n in sorted(self.by_part().items())]
        return "\n".join(lines)


class FreezingSnapshot:
    """The values at the start, kept to show later what moved.

    Frozen parameters are kept whole (on their device); of the trainable ones only whether a gradient was ever seen.
    """

    def __init__(self, model: nn.Module) -> None:
        self.values: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, _, parameter in tagged_parameters(model)
            if not parameter.requires_grad
        }
        self.had_gradient: set[str] = set()

    def observe(self, model: nn.Module) -> None:
        """Note which parameters have a non-zero gradient now. Call after a backward pass, before gradients are dropped.

        One host synchronisation in all; parameters already seen are not looked at again.
        """
        waiting = [
            (name, parameter.grad)
            for name, _, parameter in tagged_parameters(model)
            if parameter.grad is not None and name not in self.had_gradient
        ]
        if waiting:
            nonzero = torch.stack([(gradient != 0).any() for _, gradient in waiting]).tolist()
            self.had_gradient.update(name for (name, _), seen in zip(waiting, nonzero, strict=True) if seen)


def verify_parameter_freezing(
    model: nn.Module,
    snapshot: FreezingSnapshot,
    *,
    check_gradients: bool = True,
    idle_parts: frozenset[str] = frozenset(),
) -> FreezingTable:
    """List what trains and what is frozen, against a snapshot taken before the first step.

    `idle_parts` have no loss by configuration (a weight of 0) and need no gradient. With `check_gradients=False`
    (before the first step) only the frozen half is checked. At the start adaLN-Zero makes the gradients inside the
    blocks exactly 0: observe a later step.

    Raises:
        FreezingError: a frozen parameter moved, became trainable or had a gradient; a trainable one had none.
    """
    rows, faults = [], []
    for name, part, parameter in tagged_parameters(model):
        before = snapshot.values.get(name)
        moved = before is not None and not torch.equal(before.to(parameter.device), parameter.detach())
        seen = name in snapshot.had_gradient
        rows.append(FreezingRow(name, part, tuple(parameter.shape), parameter.requires_grad, moved, seen))
        if moved:
            faults.append(f"{name} ({part}) is frozen and has moved")
        if before is not None and parameter.requires_grad:
            faults.append(f"{name} ({part}) was frozen at the start and is trainable now")
        if before is None and not parameter.requires_grad:
            faults.append(f"{name} ({part}) was trainable at the start and is frozen now")
        if before is not None and seen:
            faults.append(f"{name} ({part}) is frozen and had a gradient")
        excused = part in OCCASIONAL_PARTS or part in idle_parts
        if check_gradients and before is None and parameter.requires_grad and not seen and not excused:
            faults.append(f"{name} ({part}) is trainable and has had no gradient")
    if faults:
        shown = "\n  ".join(faults[:10]) + (f"\n  … and {len(faults) - 10} more" if len(faults) > 10 else "")
        raise FreezingError(f"{len(faults)} parameters do not do what the mode says:\n  {shown}")
    return FreezingTable(tuple(rows))
